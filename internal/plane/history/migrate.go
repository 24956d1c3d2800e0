package history

import (
	"context"
	"fmt"

	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// Migrate creates or upgrades the tables of the history. If the tables are up to date, Migrate sends only one
// small query. Otherwise the role of the connection must be allowed to create tables in the first schema of
// its search_path. During an outage, the error is ratelimit.ErrUnavailable. After
// a partial restore, the error is schema.ErrRestoring.
func Migrate(ctx context.Context, db pgdb.DB) error {
	states, err := lookForTables(ctx, db)
	if err != nil || states[0] == 1 {
		return err
	}
	if states[1] == 1 {
		return schema.ErrRestoring
	}
	failure := db.Exec(ctx, prepareTimeout, schema.HistoryOnce)
	if failure == nil {
		return nil
	}
	if states, err = lookForTables(ctx, db); err == nil && states[0] == 1 {
		return nil // another process was faster
	}
	return fmt.Errorf("creating the tables of the history (a role that may create tables can run "+
		"schema.sql instead): %w", pg.Explain(ctx, db, failure))
}

// lookForTables returns the results of schema.HistoryReady and schema.RestoredInPart, each 0 or 1.
func lookForTables(ctx context.Context, db pgdb.DB) ([]int64, error) {
	const readySQL = `SELECT (` + schema.HistoryReady + `), (` + schema.RestoredInPart + `)::int`
	statement := &pgdb.Statement{SQL: readySQL}
	if err := db.Run(ctx, prepareTimeout, []*pgdb.Statement{statement}); err != nil {
		return nil, fmt.Errorf("%w: %w", ratelimit.ErrUnavailable, err)
	}
	states := pg.Bigints(statement.Result)
	if statement.Err == nil && len(states) != 2 {
		statement.Err = pg.ErrColumns
	}
	if statement.Err != nil {
		return nil, fmt.Errorf("looking for the tables of the history: %w", statement.Err)
	}
	return states, nil
}
