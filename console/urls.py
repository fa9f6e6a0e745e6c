"""Every address of the console."""

from django.contrib import admin
from django.urls import URLPattern, URLResolver, path

from console.api.app import read_urls
from console.views import home, sign_in

urlpatterns: list[URLPattern | URLResolver] = [
    path("", home.show_home, name="home"),
    path("runs/<int:run>", home.show_run, name="run"),
    path("sign-in", sign_in.SignIn.as_view(), name="sign-in"),
    path("sign-out", sign_in.sign_out, name="sign-out"),
    path("api/v1/", read_urls()),
    path("admin/", admin.site.urls),
]

handler400 = "console.views.errors.answer_400"
handler403 = "console.views.errors.answer_403"
handler404 = "console.views.errors.answer_404"
handler500 = "console.views.errors.answer_500"
