from django.apps import AppConfig, apps
from django.contrib import admin
from django.contrib.admin import apps as admin_apps


class ConsoleConfig(AppConfig):
    name = "console"
    verbose_name = "Longwatch"
    default = True

    def ready(self) -> None:
        # Longwatch's queue is the run table: django-q2's own tables stay empty, and a form that
        # schedules any dotted path is a way to run any code.
        for model in apps.get_app_config("django_q").get_models():
            if admin.site.is_registered(model):
                admin.site.unregister(model)


class AdminConfig(admin_apps.AdminConfig):
    default = False
    default_site = "console.admin.Site"
