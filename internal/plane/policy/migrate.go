package policy

import (
	"context"
	"fmt"

	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// Migrate creates or upgrades the tables of the policy. It also creates missing counter tables. If all tables
// are up to date, Migrate sends only one small query. If not, the role of the connection must be allowed to
// create tables in the first schema of its search_path. The error is ratelimit.ErrUnavailable if the database
// does not answer.
func Migrate(ctx context.Context, db pgdb.DB) error {
	flags, err := lookForTables(ctx, db)
	if err != nil || flags[1] == 1 {
		return err
	}
	if flags[2] == 1 {
		return schema.ErrRestoring
	}
	sql := schema.PolicyOnce
	if flags[0] == 0 {
		sql = schema.Lock + schema.Counters + sql
	}
	failure := db.Exec(ctx, loadTimeout, sql)
	if failure == nil {
		return nil
	}
	if flags, err = lookForTables(ctx, db); err == nil && flags[1] == 1 {
		return nil // another process was faster
	}
	return fmt.Errorf("creating the tables of the policy (a role that may create tables can run schema.sql "+
		"instead): %w", pg.Explain(ctx, db, failure))
}

// lookForTables returns the three numbers of schema.Ready, each 0 or 1: whether the counter tables are up to
// date, whether the tables of the policy are up to date, and whether a restore has brought only a part.
func lookForTables(ctx context.Context, db pgdb.DB) ([]int64, error) {
	ready := &pgdb.Statement{SQL: schema.Ready, Unnamed: true}
	_, err := read(ctx, db, loadTimeout, "looking for the tables", ready)
	flags := pg.Bigints(ready.Result)
	if err == nil && len(flags) != 3 {
		err = pg.ErrColumns
	}
	return flags, err
}
