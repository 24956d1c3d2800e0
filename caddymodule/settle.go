package caddymodule

import (
	"errors"
	"net/http"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
)

// serveSettled passes a request on and settles it after its response, even if the response is incomplete.
func serveSettled(settling *serve.Settling, w http.ResponseWriter, r *http.Request,
	next caddyhttp.Handler) error {
	status := http.StatusInternalServerError // also after a panic
	defer func() { settling.End(status, w.Header()) }()
	err := next.ServeHTTP(w, r)
	var failure caddyhttp.HandlerError
	switch {
	case err == nil:
		status = 0
	case errors.As(err, &failure) && failure.StatusCode != 0:
		status = failure.StatusCode
	}
	return err
}
