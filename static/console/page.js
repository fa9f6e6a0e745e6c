// What a page does beside its panels. Without this everything still works by links and forms.
