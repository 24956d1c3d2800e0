package caddymodule

import (
	"errors"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
)

// settled counts a hit that was settled, and logs a response with a cost that is none, at most once a second.
func (h *Handler) settled(prefix string, outcome edge.SettleOutcome, err error) {
	h.settlements.WithLabelValues(prefix, string(outcome)).Inc()
	if err == nil {
		return
	}
	if dropped, ok := h.invalid.Next(time.Now()); ok {
		h.logger.Warn("a request stays charged as estimated", zap.String("prefix", prefix), zap.Error(err), zap.Int64("not_logged", dropped))
	}
}

// serveSettled passes a request on, and settles it after its response, also if that is broken off.
func serveSettled(settling *edge.Settling, w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	if r.Method == http.MethodHead {
		settling.Head()
	}
	failed := http.StatusInternalServerError // also after a panic
	defer func() { settling.End(failed, w.Header()) }()
	err := next.ServeHTTP(w, r)
	var of caddyhttp.HandlerError
	switch {
	case err == nil:
		failed = 0
	case errors.As(err, &of) && of.StatusCode != 0:
		failed = of.StatusCode
	}
	return err
}
