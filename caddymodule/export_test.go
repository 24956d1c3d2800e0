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

// HistoryStats are the stats of the histories of a database.
func HistoryStats(dsn string) (stats []history.Stats) {
	inUse.Range(func(use, value any) bool {
		if use, ok := use.(historyUse); ok && use.store.DSN == dsn {
			stats = append(stats, value.(shared).resource.(*history.Writer).Stats())
		}
		return true
	})
	return stats
}

// CloseHistories is what the module does when the process ends, before it closes the stores.
func CloseHistories() { closeAll[*history.Writer]() }
