package postgres

import (
	"context"
	"fmt"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
)

// MigrateHistory makes the tables of the history what they must be. A Store never does that by
// itself. If nothing is to be done, it costs one small query. Otherwise the role of the
// connection must be able to create tables in the first schema of its search_path. The error is
// ratelimit.ErrUnavailable if the database does not answer.
func MigrateHistory(ctx context.Context, db DB) error {
	ready, failed, err := historyIsReady(ctx, db)
	if failed {
		return unavailableError(err)
	}
	if err != nil || ready {
		return err
	}
	failure := db.Exec(ctx, schema.HistoryOnce)
	if failure == nil {
		return nil
	}
	if ready, _, err := historyIsReady(ctx, db); err == nil && ready {
		return nil // another process was faster
	}
	return fmt.Errorf("creating the tables of the history (a role that may create tables can run schema.sql instead): %w", failure)
}

// historyIsReady reports whether the tables of the history are right, and whether the
// connection failed.
func historyIsReady(ctx context.Context, db DB) (ready, failed bool, err error) {
	statement := &Statement{SQL: schema.HistoryReady}
	if err := db.Run(ctx, []*Statement{statement}); err != nil {
		return false, true, err
	}
	if statement.Err != nil {
		return false, false, fmt.Errorf("looking for the tables of the history: %w", statement.Err)
	}
	columns := bigints(statement)
	return len(columns) == 1 && columns[0] == 1, false, nil
}
