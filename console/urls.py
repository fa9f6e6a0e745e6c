"""Every address of the console."""

from django.contrib import admin
from django.urls import URLPattern, URLResolver, path

from console.api.app import read_urls
from console.live.stream import live
from console.views import (
    approvals,
    credentials,
    facts,
    frame,
    home,
    journal,
    run,
    runs,
    sign_in,
    spend,
    start,
    switches,
)

urlpatterns: list[URLPattern | URLResolver] = [
    path("", home.show_home, name="home"),
    path("panels/home", home.show_panel, name="home-panel"),
    path("welcome", home.dismiss_welcome, name="dismiss-welcome"),
    path("runs", runs.show_runs, name="runs"),
    path("runs/new", start.start, name="start"),
    path("runs/panels/rows", runs.show_rows, name="run-rows"),
    path("runs/<int:number>", run.show_run, name="run"),
    path("runs/<int:number>/panels/head", run.show_head_panel, name="run-head"),
    path("runs/<int:number>/panels/side", run.show_side_panel, name="run-side"),
    path("runs/<int:number>/panels/<slug:tab>", run.show_tab_panel, name="run-tab"),
    path("runs/<int:number>/limits", run.set_limits, name="set-limits"),
    path("runs/<int:number>/stop", run.stop, name="stop-run"),
    path("runs/<int:number>/amend", run.amend, name="amend-run"),
    path("runs/<int:number>/pause", run.pause, name="pause-run"),
    path("runs/<int:number>/resume", run.resume, name="resume-run"),
    path("approvals", approvals.show_inbox, name="approvals"),
    path("approvals/panels/list", approvals.show_list_panel, name="approvals-list"),
    path("approvals/panels/decided", approvals.show_decided_panel, name="approvals-decided"),
    path("approvals/<int:number>", approvals.show_approval, name="approval"),
    path("approvals/<int:number>/decision", approvals.decide, name="decide"),
    path("approvals/<int:number>/claim", approvals.claim, name="claim"),
    path("approvals/<int:number>/release", approvals.release, name="release-claim"),
    path("approvals/<int:number>/later", approvals.put_off, name="put-off"),
    path("approvals/together", approvals.show_together, name="together"),
    path("approvals/together/approve", approvals.approve_together, name="approve-together"),
    path("approvals/<int:number>/panels/evidence", approvals.show_evidence_panel, name="approval-evidence"),
    path("approvals/<int:number>/panels/news", approvals.show_news_panel, name="approval-news"),
    path("approvals/<int:number>/freshen", approvals.freshen, name="freshen"),
    path("facts", facts.show_facts, name="facts"),
    path("facts/panels/list", facts.show_list_panel, name="facts-list"),
    path("facts/<int:number>", facts.show_fact, name="fact"),
    path("facts/<int:number>/panels/story", facts.show_fact_panel, name="fact-story"),
    path("facts/<int:number>/recheck", facts.recheck, name="recheck"),
    path("facts/<int:number>/correct", facts.correct, name="correct-fact"),
    path("facts/<int:number>/extend", facts.extend, name="extend-fact"),
    path("spend", spend.show_spend_page, name="spend"),
    path("spend/panels/figures", spend.show_spend_panel, name="spend-panel"),
    path("ledger", spend.show_ledger, name="ledger"),
    path("ledger.csv", spend.export_ledger, name="ledger-csv"),
    path("credentials", credentials.show_credentials_page, name="credentials"),
    path("credentials/panels/list", credentials.show_list_panel, name="credentials-list"),
    path("credentials/renew", credentials.renew, name="renew-credential"),
    path("switches", switches.show_switches, name="switches"),
    path("switches/panels/engaged", switches.show_panel, name="switches-panel"),
    path("switches/engage", switches.engage, name="engage-switch"),
    path("switches/<int:number>/release", switches.release, name="release-switch"),
    path("switches/<int:number>/stop-runs", switches.stop_runs, name="stop-switched-runs"),
    path("journal", journal.show_journal, name="journal"),
    path("journal.csv", journal.export_journal, name="journal-csv"),
    path("panels/nav", frame.show_nav, name="nav"),
    path("panels/switches", frame.show_switch_bars, name="switch-bars"),
    path("theme", frame.set_theme, name="theme"),
    path("sign-in", sign_in.SignIn.as_view(), name="sign-in"),
    path("sign-out", sign_in.sign_out, name="sign-out"),
    path("live", live, name="live"),
    path("api/v1/live", live, name="live-beside-api"),
    path("api/v1/", read_urls()),
    path("admin/", admin.site.urls),
]

handler400 = "console.views.errors.answer_400"
handler403 = "console.views.errors.answer_403"
handler404 = "console.views.errors.answer_404"
handler500 = "console.views.errors.answer_500"
