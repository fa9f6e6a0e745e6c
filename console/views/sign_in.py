"""Signing in, by name and password or by a link that works once, and signing out."""

from typing import Any

from django.contrib.auth import login, logout
from django.contrib.auth.views import LoginView
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.decorators import method_decorator
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_POST

from console.forms import SignInForm
from runs import access, operations


@method_decorator(never_cache, name="dispatch")
@method_decorator(sensitive_post_parameters(), name="dispatch")
class SignIn(LoginView):
    """`?token=` is a link that works once: the GET only asks, so that no scanner or preview spends it; the POST signs in."""

    template_name = "sign-in.html"
    authentication_form = SignInForm
    redirect_authenticated_user = False

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        token = request.GET.get("token", "")
        if not token:
            if request.user.is_authenticated:
                return HttpResponseRedirect(self.get_success_url())
            return super().get(request, *args, **kwargs)
        user = access.read_sign_in_token(token)
        if user is None:
            return self._refuse_link()
        context = self.get_context_data(token=token, name=user.get_username())
        return self.render_to_response(context)

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        token = request.POST.get("token", "")
        if not token:
            return super().post(request, *args, **kwargs)
        user = operations.spend_sign_in_token(token)
        if user is None:
            return self._refuse_link()
        login(request, user, backend="django.contrib.auth.backends.ModelBackend")
        return HttpResponseRedirect(self.get_success_url())

    def _refuse_link(self) -> HttpResponse:
        return self.render_to_response(self.get_context_data(link_refused=True), status=410)


@never_cache
@require_POST
def sign_out(request: HttpRequest) -> HttpResponse:
    logout(request)
    return HttpResponseRedirect("/sign-in")
