package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
)

// RegionStatus is one side of the replication of the policy: a region, or a region that the publisher serves.
type RegionStatus struct {
	// Role is "region" or "publisher".
	Role string `json:"role"`
	// Subscription is its name, which is also that of the publisher's slot. It is "" of a region without one.
	Subscription string `json:"subscription"`
	// State is streaming, copying, stopped, disabled or none.
	State string `json:"state"`
	// Silent is for how many seconds the other side has been silent. It is nil if the role may not see it.
	Silent *float64 `json:"silent_seconds"`
	// Errors is how many times the region could not apply a change. Retained is how many bytes of the
	// write-ahead log the publisher keeps for the region.
	Errors   *int64 `json:"errors"`
	Retained *int64 `json:"retained_bytes"`
}

// Region returns the name of the region that the database is, or "".
func (d *Database) Region(ctx context.Context) (string, error) {
	known, err := value[bool](ctx, d, "SELECT to_regprocedure('rate_limit_region()') IS NOT NULL")
	if err != nil || !*known {
		return "", err
	}
	name, err := value[string](ctx, d, "SELECT coalesce(rate_limit_region(), '')")
	if err != nil {
		return "", err
	}
	return *name, nil
}

// MakeRegion makes the database a region, or with "" none. The tables are those of Migrate.
func (d *Database) MakeRegion(ctx context.Context, name string) error {
	_, err := d.makeTables(ctx, false, "rate_limit_rules", "SELECT rate_limit_make_region(nullif("+quoted(name)+", ''))")
	return err
}

// RegionStatuses returns the replication of the policy to this database, if it is a region, and that from it.
func (d *Database) RegionStatuses(ctx context.Context) ([]RegionStatus, error) {
	region, err := d.Region(ctx)
	if err != nil {
		return nil, err
	}
	from := ""
	if region != "" {
		from = `SELECT 'region', x.subscription, x.state, x.silent, x.errors, NULL::bigint FROM (` + schema.Replication + `) AS x UNION ALL `
	}
	return rows[RegionStatus](ctx, d, from+`SELECT 'publisher', s.slot_name::text, CASE WHEN s.active THEN 'streaming' ELSE 'stopped' END,
	CASE WHEN a.reply_time IS NOT NULL THEN extract(epoch FROM clock_timestamp() - a.reply_time)::float8 END, NULL::bigint,
	CASE WHEN NOT pg_is_in_recovery() THEN pg_wal_lsn_diff(pg_current_wal_lsn(), s.confirmed_flush_lsn)::bigint END
FROM pg_replication_slots s LEFT JOIN pg_stat_replication a ON a.pid = s.active_pid
WHERE s.slot_type = 'logical' AND s.database = current_database() AND s.slot_name ~ '^`+schema.Publication+`_[a-z0-9_]+$' AND NOT s.temporary
ORDER BY 1, 2`)
}

// PublishSQL are the commands that publish the policy.
func (d *Database) PublishSQL(ctx context.Context) ([]string, error) {
	tables, err := d.publishedTables(ctx)
	if err != nil {
		return nil, err
	}
	return []string{"CREATE PUBLICATION " + schema.Publication + " FOR TABLE " + strings.Join(tables, ", ")}, nil
}

// publishedTables are the tables of the policy with their schema.
func (d *Database) publishedTables(ctx context.Context) ([]string, error) {
	return values[string](ctx, d, `SELECT format('%I.%I', c.relnamespace::regnamespace, c.relname) FROM unnest($1::text[]) WITH ORDINALITY AS t(name, number)
JOIN pg_class c ON c.oid = t.name::regclass ORDER BY t.number`, schema.Published)
}

// Publish publishes the policy. It reports false if that was done before.
func (d *Database) Publish(ctx context.Context) (bool, error) {
	level, err := value[string](ctx, d, "SELECT current_setting('wal_level')")
	if err != nil {
		return false, err
	}
	if *level != "logical" {
		return false, fmt.Errorf("wal_level: %s: must be logical: ALTER SYSTEM SET wal_level = logical, and restart the server", *level)
	}
	tables, err := d.publishedTables(ctx)
	if err != nil {
		return false, err
	}
	published, err := values[string](ctx, d, `SELECT format('%I.%I', p.schemaname, p.tablename) FROM pg_publication_tables p WHERE p.pubname = $1`, schema.Publication)
	if err != nil {
		return false, err
	}
	if len(published) > 0 {
		for _, table := range tables {
			if !slices.Contains(published, table) {
				return false, fmt.Errorf("the publication %s lacks the table %s: drop the publication, and try again", schema.Publication, table)
			}
		}
		return false, nil
	}
	commands, err := d.PublishSQL(ctx)
	if err != nil {
		return false, err
	}
	_, err = d.execute(ctx, commands[0])
	return true, err
}

// SubscribeSQL are the commands that make a database a region, or that copy the policy again. Proxies of the region keep
// what they have read from the second command on, and until all rows are there.
func SubscribeSQL(region, publisher string) []string {
	name := subscription(region)
	commands := []string{
		"SELECT rate_limit_make_region(" + quoted(region) + ")",
		"CREATE SUBSCRIPTION " + name + " CONNECTION " + quoted(publisher) + " PUBLICATION " + schema.Publication + " WITH (enabled = false)",
		"SET session_replication_role = replica",
		"SET rate_limit.migrating = on",
	}
	for i := len(schema.Published) - 1; i >= 0; i-- {
		table := schema.Published[i]
		if table == "rate_limit_bans" {
			table += " WHERE id > 0" // the others are of the region
		}
		commands = append(commands, "DELETE FROM "+table)
	}
	return append(commands, "RESET session_replication_role", "RESET rate_limit.migrating", "ALTER SUBSCRIPTION "+name+" ENABLE")
}

// subscription is the name of the subscription of a region, which make_region has checked.
func subscription(region string) string { return schema.Publication + "_" + region }

func quoted(text string) string {
	return "E'" + strings.NewReplacer("'", "''", `\`, `\\`).Replace(text) + "'"
}

// Subscribe makes the database a region that gets its policy from a publisher, a DSN. What the region has of the policy is
// replaced, but for its own bans. again ends a subscription that it has, and begins anew.
func (d *Database) Subscribe(ctx context.Context, region, publisher string, again bool) error {
	if err := d.MakeRegion(ctx, region); err != nil {
		return err
	}
	name := subscription(region)
	has, err := value[bool](ctx, d, `SELECT EXISTS (SELECT FROM pg_subscription WHERE subdbid = (SELECT oid FROM pg_database WHERE datname = current_database())
	AND subname = $1)`, name)
	if err != nil {
		return err
	}
	if *has && !again {
		return fmt.Errorf("the region %s has its subscription: --again drops it, and copies the policy anew", region)
	}
	if *has {
		if err := d.command(ctx, "DROP SUBSCRIPTION "+name); err != nil {
			return err
		}
	}
	for i, sql := range SubscribeSQL(region, publisher)[1:] {
		err := d.command(ctx, sql)
		if err == nil {
			continue
		}
		if i > 0 { // the region is as before, or without rows, and gets none: begin anew
			err = errors.Join(err, d.command(context.WithoutCancel(ctx), "RESET session_replication_role"), d.command(context.WithoutCancel(ctx), "DROP SUBSCRIPTION "+name))
		}
		return err
	}
	return nil
}

// command runs a command that cannot be in a transaction. An error has no part of the command, which may hold a password.
func (d *Database) command(ctx context.Context, sql string) error {
	return d.patiently(ctx, patience, func() error {
		_, err := d.conn.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol)
		return err
	})
}
