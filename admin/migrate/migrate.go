// Package migrate creates the tables, or upgrades them in place, for the command migrate. Proxies create
// tables where there are none, and leave upgrades to this package and to schema.sql.
//
// Run upgrades all tables in one transaction, keeps the rows, and changes nothing in tables that are up to
// date or newer. Run waits for locks in short attempts, so that no other session waits long behind Run. With
// Citus, Run also creates the tables of the shards. The number of shards cannot change later.
//
// The command tests it in admin/command (testdata/migrate.txt), and package schema the SQL.
package migrate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/internal/schema"
)

// Results holds the result of Run.
type Results struct {
	// Tables is created, upgraded or up to date, or "" if Run has changed nothing.
	Tables string `json:"tables"`
	// Shards is the result for the tables of the shards, or nil if the counts are not in shards.
	Shards *string `json:"shards,omitempty"`
	// Exposed has a sentence about each role with rights that rate_limit_grant has not granted, and about
	// each role from which row level security hides rows.
	Exposed []string `json:"exposed,omitempty"`
}

// The values of the fields of Results.
const (
	created  = "created"
	upgraded = "upgraded"
	upToDate = "up to date"
)

const (
	// Patience bounds the time for which Run repeats a migration that a lock of another session stops.
	Patience = 10 * time.Second
	// lockPause is the pause between two attempts to lock the tables.
	lockPause = 200 * time.Millisecond
	// maxShards bounds the number of shards. Each shard has four tables, and a queue in each proxy.
	maxShards = 256
)

// Run creates or upgrades all tables in a database. With Citus, shards is the number of shards for the
// counts. If shards is 0, Run upgrades existing shards, and creates none. After an error, results has what
// was done before.
func Run(ctx context.Context, conn *pgx.Conn, shards int) (results Results, err error) {
	state, err := Read(ctx, conn)
	if err != nil {
		return results, err
	}
	existing, err := shardSchemas(ctx, conn)
	if state.Newer() {
		return Results{Tables: upToDate}, err
	}
	for _, name := range existing { // first: an interrupted upgrade begins again with them
		err = errors.Join(err, makeShard(ctx, conn, name, false))
	}
	if err == nil {
		err = repeat(ctx, conn, schema.Lock+schema.Upgrade)
	}
	for _, file := range schema.Numbered {
		if err == nil && file.Done != "" {
			err = TakeSteps(ctx, conn, file)
		}
	}
	if err != nil {
		return results, err
	}
	after, err := Read(ctx, conn)
	switch {
	case state.Number == 0:
		results.Tables = created
	case after != state:
		results.Tables = upgraded
	default:
		results.Tables = upToDate
	}
	if err == nil && shards+len(existing) > 0 {
		var result string
		result, err = makeShards(ctx, conn, cmp.Or(shards, len(existing)), len(existing))
		results.Shards = &result
	}
	if err == nil {
		results.Exposed, err = queryColumn(ctx, conn, "SELECT rate_limit_hidden() "+
			"UNION ALL SELECT rate_limit_exposed()")
	}
	return results, err
}

// Read returns the state of a database.
func Read(ctx context.Context, conn *pgx.Conn) (state schema.State, err error) {
	text, err := queryValue[string](ctx, conn, schema.StateSQL)
	if err == nil {
		state, err = schema.ParseState([]byte(text))
	}
	return state, err
}

// Pending returns what Upgrade would run in a database, for people.
func Pending(s schema.State) string {
	text := ""
	if s.Revision >= schema.ThisRevision {
		return fmt.Sprintf("-- Nothing: the tables have the revision %d, and this program brings %d.\n",
			s.Revision, schema.ThisRevision)
	}
	for _, f := range schema.Numbered {
		if s.Number < f.Number {
			text += "-- " + f.Name + "\n" + f.SQL
		}
	}
	return text + fmt.Sprintf("-- All functions, views, triggers and comments are made again, as migrate "+
		"--print shows them: revision %d becomes %d.\n", s.Revision, schema.ThisRevision)
}

// TakeSteps runs the commands of a file, each in a transaction of its own, unless all are done. Each can be
// repeated, so an interrupted migration begins again with the first.
func TakeSteps(ctx context.Context, conn *pgx.Conn, file schema.NumberedFile) error {
	done, err := queryValue[bool](ctx, conn, "SELECT "+file.Done)
	for command := range strings.SplitSeq(file.SQL, "--;\n") {
		if err == nil && !done && command != "" {
			err = repeat(ctx, conn, command)
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", file.Name, err)
	}
	return nil
}

// repeat runs commands in one transaction, again after each lock timeout for as long as Patience.
//
// While a session waits for the lock of a table, all later sessions queue behind it, so each attempt is
// short. Several commands in one text without parameters are one transaction.
func repeat(ctx context.Context, conn *pgx.Conn, sql string) error {
	for deadline := time.Now().Add(Patience); ; {
		_, err := conn.PgConn().Exec(ctx, sql).ReadAll()
		var failed *pgconn.PgError
		if !errors.As(err, &failed) || failed.Code != pg.LockNotAvailable || time.Now().After(deadline) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(lockPause):
		}
	}
}

// makeShards creates or upgrades the tables of the shards in a database with Citus. existing is the number of
// shards that exist. If it is not 0, shards must be the same number, because the number of shards determines
// the shard of each row.
func makeShards(ctx context.Context, conn *pgx.Conn, shards, existing int) (string, error) {
	if shards < 1 || shards > maxShards {
		return "", fmt.Errorf("--shards: %d: must be from 1 to %d", shards, maxShards)
	}
	version, err := queryValue[string](ctx, conn,
		"SELECT coalesce(max(extversion), '') FROM pg_extension WHERE extname = 'citus'")
	if err != nil {
		return "", err
	}
	if version == "" {
		return "", errors.New("--citus: the database has no extension citus: it must be on the " +
			"coordinator of Citus 12 or newer, with CREATE EXTENSION citus")
	}
	if major, _, _ := strings.Cut(version, "."); len(major) < 2 || major < "12" {
		return "", fmt.Errorf("--citus: the server has Citus %s: it must be 12 or newer", version)
	}
	if existing > 0 && existing != shards {
		return "", fmt.Errorf("--shards: %d: must be %d, the number with which the tables were created: it "+
			"determines the shard of a counter", shards, existing)
	}
	prefix, err := queryValue[string](ctx, conn,
		"SELECT CASE current_schema() WHEN 'public' THEN 'rl_s' ELSE current_schema() || '_s' END")
	if err != nil {
		return "", err
	}
	var names []string
	for shard := range shards {
		name := fmt.Sprint(prefix, shard)
		names = append(names, literal(name))
		if existing == 0 {
			if err := makeShard(ctx, conn, name, true); err != nil {
				return "", err
			}
		}
	}
	if err := run(ctx, conn, schema.Shards+regrant); err != nil || existing > 0 {
		return upToDate, err
	}
	// Create the function last, because proxies use the shards as soon as the function exists.
	return created, run(ctx, conn, strings.Replace(shardsFunction, "$1", "ARRAY["+strings.Join(names,
		", ")+"]", 1)+"\n"+regrant+"\n"+schema.LedgerUpkeep+";\n")
}

const (
	// shardsFunction creates the function that returns the shards. The caller replaces $1 by the array of
	// their schemas. Citus copies functions to new workers.
	shardsFunction = `CREATE OR REPLACE FUNCTION rate_limit_shards() RETURNS TABLE (shard int,
		schema text) LANGUAGE sql IMMUTABLE AS $$
	SELECT p.shard::int - 1, p.schema FROM unnest($1::text[]) WITH ORDINALITY AS p(schema, shard) $$;
COMMENT ON FUNCTION rate_limit_shards() IS
	'The shards of the counts. A subject is in the shard that is the first four bytes of its SHA-256 modulo '
	'the number of shards, which cannot change.';`

	// regrant grants the roles of rate_limit_grants their rights, also on the tables of the shards.
	regrant = `SELECT rate_limit_grant(g.role, g.kind) FROM rate_limit_grants g
	JOIN pg_roles r ON r.rolname = g.role;`
)

// makeShard creates or upgrades the tables of a shard. A new one gives no role the default privileges.
func makeShard(ctx context.Context, conn *pgx.Conn, name string, isNew bool) error {
	identifier := pgx.Identifier{name}.Sanitize()
	strip := ""
	if isNew {
		strip = "SET LOCAL search_path TO DEFAULT;\nSELECT rate_limit_strip(ARRAY(SELECT c.oid " +
			"FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = " +
			literal(name) + "));\n"
	}
	err := run(ctx, conn, "SET LOCAL citus.enable_schema_based_sharding = on;\nCREATE SCHEMA IF NOT "+
		"EXISTS "+identifier+";\nSET LOCAL search_path = "+identifier+";\n"+schema.ShardTables+strip)
	if err != nil {
		return fmt.Errorf("creating the shard %s: %w", name, err)
	}
	return nil
}

// literal returns a text as a literal of SQL.
func literal(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }

// run runs commands in one transaction. It sends each command in a query of its own, because Citus forwards
// the whole text of a query to the workers, including commands that only the coordinator must run.
func run(ctx context.Context, conn *pgx.Conn, sql string) error {
	return pgx.BeginFunc(ctx, conn, func(pgx.Tx) error {
		command := "SET LOCAL lock_timeout = '10s';\n"
		for text := range strings.SplitAfterSeq(sql, ";\n") {
			command += text
			if strings.Count(command, "$$")%2 == 1 {
				continue // in the body of a function
			}
			if _, err := conn.PgConn().Exec(ctx, command).ReadAll(); err != nil {
				return err
			}
			command = ""
		}
		return nil
	})
}

// shardSchemas returns the schemas of the shards, or none if the counts are not in shards.
func shardSchemas(ctx context.Context, conn *pgx.Conn) ([]string, error) {
	if ready, err := queryValue[int32](ctx, conn, schema.ShardsReady); err != nil || ready == 0 {
		return nil, err
	}
	return queryColumn(ctx, conn, schema.ShardNames)
}

// queryColumn runs a query that returns rows with one text.
func queryColumn(ctx context.Context, conn *pgx.Conn, sql string) ([]string, error) {
	result, err := conn.Query(ctx, sql)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(result, pgx.RowTo[string])
}

// queryValue runs a query that returns one row with one column.
func queryValue[T any](ctx context.Context, conn *pgx.Conn, sql string, args ...any) (result T, err error) {
	err = conn.QueryRow(ctx, sql, args...).Scan(&result)
	return result, err
}
