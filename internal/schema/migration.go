package schema

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

//go:generate go test . -run TestGeneratedFileIsCurrent -update

// NumberedFile is a file that runs once in a database, after those with lower numbers.
type NumberedFile struct {
	Number int
	Name   string
	Done   string // for steps, which only the command migrate runs: a condition that holds if they are done
	SQL    string // commands with a line --; after each
}

// Create creates all tables in a database without tables of this schema, or with those of the npm library
// pg-ratelimit, which it completes. It changes nothing in others.
const Create = Lock + `
SELECT set_config('pg_ratelimit.creates', 'on', true);` + Upgrade

// Lock begins a migration. It takes a lock with an arbitrary number, so that only one process migrates at a
// time. lock_timeout bounds the wait for a table in use, because decisions queue behind a migration that
// waits for the table. No other timeout ends a migration.
const Lock = pg.GuardSQL + `SELECT pg_advisory_xact_lock(1885827692);
SELECT set_config('lock_timeout', '200ms', true);`

// Locked returns 1 if another session holds the lock of a migration, and 0 otherwise.
const Locked = `SELECT count(*)::int FROM pg_locks l JOIN pg_database d ON d.oid = l.database
WHERE l.locktype = 'advisory' AND l.classid = 0 AND l.objid = 1885827692 AND l.granted
	AND l.pid <> pg_backend_pid() AND d.datname = current_database()`

// File is the text of schema.sql in a release, for psql and other programs. It waits while another program
// creates or upgrades the tables, and sets no lock_timeout: an operator, unlike a proxy, can wait for a table
// in use.
const File = `-- The tables of pg-ratelimit. Run this file if proxies may not create them: psql -f schema.sql
-- It creates the tables, or upgrades tables of an older version and of the npm library pg-ratelimit, and
-- keeps their rows. It can run any number of times. The comments are in the .sql files of internal/schema.
-- The server must be PostgreSQL 15 or newer.
SET statement_timeout = 0;
BEGIN;
DO $$ BEGIN PERFORM set_config(name, '0', true) FROM pg_settings
	WHERE name = 'transaction_timeout'; PERFORM pg_advisory_xact_lock(1885827692); END $$;
` + Upgrade + `
COMMIT;
RESET statement_timeout;
`

// About is an expression for what rate_limit_about returns, or NULL. It needs no privilege and no lock.
const About = `(SELECT substring(p.prosrc FROM '\{.*\}')::jsonb FROM pg_proc p
	WHERE p.oid = to_regprocedure('rate_limit_about()'))`

// Whole is a condition that holds if the database has all triggers of its migration, and none is disabled. A
// restore creates the triggers after all rows of their tables, or disables the triggers while it writes rows.
// So without them, the tables may lack rows.
const Whole = `coalesce((SELECT count(*) >= (b.about ->> 'triggers')::int AND bool_and(g.tgenabled <> 'D')
	FROM (SELECT ` + About + ` AS about) b, pg_trigger g
	WHERE g.tgname LIKE 'rate\_limit\_%' AND g.tgname <> 'rate_limit_refuse_count'
		AND g.tgrelid IN (SELECT to_regclass(t) FROM jsonb_array_elements_text(b.about -> 'tables') t)
	GROUP BY b.about), false)`

// oldestTables is the number of the oldest tables that this program can use.
const oldestTables = 1

// Usable is a condition that holds if this program can use the tables.
var Usable = fmt.Sprintf(`((%[1]s ->> 'number')::int >= %[2]d AND (%[1]s ->> 'oldest')::int <= %[3]d)`, About,
	oldestTables, number)

// Newer is an expression for the columns by which only newer programs match the row r of rate_limit_rules.
var Newer = fmt.Sprintf(`(SELECT string_agg(x.key, ', ' ORDER BY x.key)
	FROM jsonb_each_text(%s -> 'restricts') x WHERE x.value::int > %d AND to_jsonb(r) ->> x.key IS NOT NULL)`,
	About, number)

// StateSQL returns the state of a database as a text for ParseState. It needs no privilege and no lock.
const StateSQL = `SELECT row_to_json(s)::text FROM (` + stateSQL + `) AS s`

var (
	// ErrRestoring means that a database has the tables in part: a restore is running or has failed.
	ErrRestoring = errors.New("a restore is running or has failed")
	// ErrVersion means that this program cannot use the tables, because another version made them.
	ErrVersion = errors.New("the tables are of another version")
	// ErrMissing means that a database has no tables, or only those of the npm library pg-ratelimit, or lacks
	// tables of counts.
	ErrMissing = errors.New("there are no tables")
)

// remedy says how to make or upgrade the tables.
func remedy() string { return "run " + pg.Program + " migrate, or psql -f schema.sql" }

// State is what a database has.
type State struct {
	Number   int // the number of the last file that the database has run, 0 without tables
	Revision int // the revision of its functions
	Oldest   int // the number of the oldest program that may use the tables

	InPart     bool `json:"in_part"`
	Lacks      bool // tables of counts are missing, and all others are there
	Unnumbered bool // the tables were made before 0.1.0
	Fault      string
}

// ParseState returns the state in a text that StateSQL returned.
func ParseState(text []byte) (State, error) {
	var s State
	err := json.Unmarshal(text, &s)
	if err != nil {
		err = fmt.Errorf("the state of the tables: %w", err)
	}
	return s, err
}

// ThisRevision is the revision that this program brings.
const ThisRevision = revision

// Newer reports whether a newer program made the tables.
func (s State) Newer() bool { return s.Revision > revision }

// Err returns nil if this program can use the tables. Otherwise the error is ErrMissing, or wraps
// ErrRestoring or ErrVersion, or names tables of another program.
func (s State) Err() error {
	const numbers = "%w: they have the number %d, and this program needs "
	switch {
	case s.InPart:
		return fmt.Errorf("%w: %s", ErrRestoring, s.Fault)
	case s.Unnumbered:
		return fmt.Errorf("%w: %s", ErrVersion, s.Fault)
	case s.Fault != "":
		return errors.New(s.Fault)
	case s.Number == 0 || s.Lacks:
		return fmt.Errorf("%w: %s", ErrMissing, remedy())
	case s.Number < oldestTables:
		return fmt.Errorf(numbers+"%d or later: %s", ErrVersion, s.Number, oldestTables, remedy())
	case number < s.Oldest:
		return fmt.Errorf(numbers+"an older one, since they need a program of the number %d or later, and "+
			"this one has %d: upgrade this program", ErrVersion, s.Number, s.Oldest, number)
	}
	return nil
}

// Revision is an expression for the revision of the tables as a text, or NULL.
const Revision = About + ` ->> 'revision'`

// Outdated returns a sentence with the remedy if this program brings a newer revision than that of the
// tables, or "".
func Outdated(revisionOfTables string) string {
	if n, err := strconv.Atoi(revisionOfTables); err != nil || n >= revision {
		return ""
	}
	return fmt.Sprintf("the tables have the revision %s, and this program brings %d: %s", revisionOfTables,
		revision, remedy())
}

// createTimeout bounds CreateTables.
const createTimeout = 30 * time.Second

// CreateTables creates the tables. The role of the connection must then be allowed to create tables in the
// first schema of its search_path.
func CreateTables(ctx context.Context, db pgdb.DB) error {
	failure := db.Exec(ctx, createTimeout, Create)
	if failure == nil || Look(ctx, db) == nil {
		// A program that creates the tables at the same time without the advisory lock, such as the npm
		// library, can make this attempt fail although the tables are right.
		return nil
	}
	return fmt.Errorf("creating the tables (a role that may create tables can %s, instead): %w", remedy(),
		failure)
}

// prepareInterval is the minimum time between two attempts to create the tables.
const prepareInterval = 10 * time.Second

// Preparation repeats Look until this program can use the tables.
type Preparation struct {
	Done bool  // this program can use the tables
	Err  error // of the last attempt to which the database has answered

	next time.Time // when the next attempt is due
}

// Try is like Look. If there are no tables, and creates is set, Try creates them, after a call of begun. It
// does nothing if Done is set, and returns Err for 10 seconds after the tables could not be created.
func (p *Preparation) Try(
	ctx context.Context, db pgdb.DB, creates bool, now time.Time, begun func(),
) error {
	if p.Done || p.Err != nil && now.Before(p.next) {
		return p.Err
	}
	err := Look(ctx, db)
	if errors.Is(err, ratelimit.ErrUnavailable) {
		return err
	}
	p.next = now
	if creates && errors.Is(err, ErrMissing) {
		p.next = now.Add(prepareInterval)
		begun()
		err = CreateTables(ctx, db)
	}
	p.Err = pg.Explain(ctx, db, err)
	p.Done = p.Err == nil
	return p.Err
}

// lookTimeout bounds Look. It is short, because a network may drop the packets of the first look.
const lookTimeout = 2 * time.Second

// Look returns nil if this program can use the tables of a database. The error is ratelimit.ErrUnavailable if
// the database does not answer, and otherwise as that of State.Err.
func Look(ctx context.Context, db pgdb.DB) error {
	lock := &pgdb.Statement{SQL: Locked, Unnamed: true}
	tables := &pgdb.Statement{SQL: StateSQL, Unnamed: true}
	if err := db.Run(ctx, lookTimeout, []*pgdb.Statement{lock, tables}); err != nil {
		return fmt.Errorf("%s: %w: %w", looking, ratelimit.ErrUnavailable, err)
	}
	_, err := Seen(lock, tables)
	return err
}

const looking = "looking for the tables"

// Seen returns what a statement with Locked and one with StateSQL have read, which have run in this order:
// whether another session holds the lock of migrations, and the error of State.Err. If it holds the lock,
// tables in part are ErrMissing, because sessions can see a part of them while a migration commits.
func Seen(lock, tables *pgdb.Statement) (locked bool, err error) {
	locks := pg.Bigints(lock.Result)
	locked = len(locks) == 1 && locks[0] == 1
	texts, err := pg.Columns(tables.Result)
	if tables.Err != nil {
		err = tables.Err
	}
	switch {
	case err != nil:
		return locked, fmt.Errorf("%s: %w", looking, err)
	case len(texts) == 0:
		return locked, ErrMissing
	}
	state, err := ParseState(texts[0])
	if err == nil {
		err = state.Err()
	}
	if locked && errors.Is(err, ErrRestoring) {
		err = ErrMissing
	}
	return locked, err
}
