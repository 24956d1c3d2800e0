package caddymodule

import (
	"context"
	"errors"

	"github.com/caddyserver/caddy/v2"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
)

// FlushHistories writes the pending records of the running config's histories.
func FlushHistories(ctx context.Context) (failure error) {
	loaded, err := caddy.ActiveContext().AppIfConfigured("pg_ratelimit")
	if err != nil {
		return err
	}
	for _, handle := range loaded.(*App).handles {
		for _, r := range handle.Resources {
			if w, ok := r.(*history.Writer); ok {
				failure = errors.Join(failure, w.Flush(ctx))
			}
		}
	}
	return failure
}

// CloseHistories closes all histories, as closeAll does before it closes the databases.
func CloseHistories() {
	for _, r := range process.Shared() {
		if w, ok := r.(*history.Writer); ok {
			w.Close()
		}
	}
}
