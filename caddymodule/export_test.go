package caddymodule

import (
	"context"
	"errors"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
)

// FlushHistories writes what is pending in the histories of a database.
func FlushHistories(ctx context.Context, dsn string) (failure error) {
	inUse.Range(func(use, value any) bool {
		if use, ok := use.(historyUse); ok && use.store.DSN == dsn {
			failure = errors.Join(failure, value.(shared).resource.(*history.Writer).Flush(ctx))
		}
		return true
	})
	return failure
}

// CloseHistories is what the module does when the process ends, before it closes the stores.
func CloseHistories() { closeAll[*history.Writer]() }
