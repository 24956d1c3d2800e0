package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
)

// MigratePolicy makes the tables of the policy what they must be, and creates those of counts
// if they are missing. If nothing is to be done, it costs one small query. Otherwise the role
// of the connection must be able to create tables in the first schema of its search_path, and
// the server must be Postgres 15 or newer. The error is ratelimit.ErrUnavailable if the
// database does not answer.
func MigratePolicy(ctx context.Context, db DB) error {
	now, failed, err := lookForTables(ctx, db)
	if failed {
		return unavailableError(err)
	}
	if err != nil || now.policy {
		return err
	}
	if now.restoring {
		return errRestoring
	}
	if now.server < schema.OldestPolicyServer {
		return fmt.Errorf("the tables of the policy need Postgres 15 or newer, and the server is %d; counters work without them", now.server/10000)
	}
	sql := policyMigrationSQL
	if !now.counters {
		sql = migrationSQL + policyMigrationSQL
	}
	failure := db.Exec(ctx, sql)
	if failure == nil {
		return nil
	}
	if now, _, err := lookForTables(ctx, db); err == nil && now.policy {
		return nil // another process was faster
	}
	return fmt.Errorf("creating the tables of the policy (a role that may create tables can run schema.sql instead): %w", failure)
}

// tablesFound is what schema.Ready returns.
type tablesFound struct {
	counters, policy bool // nothing is to be done
	server           int64
	restoring        bool // a restore of the policy is under way, or has failed
}

// errRestoring is for tables that a restore has made, and has not finished.
var errRestoring = errors.New("the tables are there in part, as during a restore and after one that has failed: a proxy does not change them. If no restore is under way, repeat the restore, or run: caddy pg-ratelimit migrate")

// lookForTables reports which tables are right, and whether the connection failed.
func lookForTables(ctx context.Context, db DB) (tablesFound, bool, error) {
	statement := &Statement{SQL: schema.Ready}
	if err := db.Run(ctx, []*Statement{statement}); err != nil {
		return tablesFound{}, true, err
	}
	if statement.Err != nil {
		return tablesFound{}, false, fmt.Errorf("looking for the tables: %w", statement.Err)
	}
	found := tablesFound{}
	columns := bigints(statement)
	if len(columns) == 4 {
		found.counters = columns[0] == 1
		found.policy = columns[1] == 1
		found.server = columns[2]
		found.restoring = columns[3] == 1
	}
	return found, false, nil
}
