package caddymodule

import (
	"context"
	"errors"

	"github.com/caddyserver/caddy/v2"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
)

// FlushHistories writes what is pending in the histories of the running config.
func FlushHistories(ctx context.Context) (failure error) {
	loaded, err := caddy.ActiveContext().AppIfConfigured("pg_ratelimit")
	if err != nil {
		return err
	}
	for _, u := range loaded.(*App).handles {
		for _, r := range u.Resources {
			if w, ok := r.(*history.Writer); ok {
				failure = errors.Join(failure, w.Flush(ctx))
			}
		}
	}
	return failure
}

// CloseHistories closes the histories as the end of the process does before it closes the stores.
func CloseHistories() {
	for _, r := range proxy.Shared() {
		if w, ok := r.(*history.Writer); ok {
			w.Close()
		}
	}
}
