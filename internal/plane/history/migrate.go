package history

import (
	"context"
	"fmt"

	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// Migrate creates or upgrades the tables of the history. If they are up to date, it costs one small
// query. Otherwise the role of the connection must be able to create tables in the first schema of its
// search_path. During an outage the error is ratelimit.ErrUnavailable.
func Migrate(ctx context.Context, db pgdb.DB) error {
	ready, inPart, err := isReady(ctx, db)
	if err != nil || ready {
		return err
	}
	if inPart {
		return schema.ErrRestoring
	}
	failure := db.Exec(ctx, schema.HistoryOnce)
	if failure == nil {
		return nil
	}
	if ready, _, err := isReady(ctx, db); err == nil && ready {
		return nil // another process was faster
	}
	return fmt.Errorf("creating the tables of the history (a role that may create tables can run "+
		"schema.sql instead): %w", pg.Explain(ctx, db, failure))
}

// isReady reports whether the tables are up to date, and whether some of them exist.
func isReady(ctx context.Context, db pgdb.DB) (ready, inPart bool, err error) {
	const readySQL = `SELECT (` + schema.HistoryReady + `), (` + schema.RestoredInPart + `)::int`
	statement := &pgdb.Statement{SQL: readySQL}
	if err := db.Run(ctx, []*pgdb.Statement{statement}); err != nil {
		return false, false, fmt.Errorf("%w: %w", ratelimit.ErrUnavailable, err)
	}
	if statement.Err != nil {
		return false, false, fmt.Errorf("looking for the tables of the history: %w", statement.Err)
	}
	found := pg.Bigints(statement.Result)
	return len(found) == 2 && found[0] == 1, len(found) == 2 && found[1] == 1, nil
}
