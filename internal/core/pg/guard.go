package pg

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// recheck is the number of times that a connection is used between two guards while no setting does harm.
const recheck = 256

// The statements of a guard. The first two are not planned, so the server does not compile them. In a
// pipeline, SET LOCAL by itself would write a warning to the server's log. Without row_security, a statement
// fails where row level security would hide rows.
const (
	showSQL = `SHOW jit`
	jitSQL  = `DO 'BEGIN SET LOCAL jit = off; SET LOCAL row_security = off; END'`

	// replaceSQL replaces harmful settings until the end of the transaction. It returns a row of four
	// bigints: 1 if a setting harms statements that read and write single rows, 1 if JIT would harm
	// them where it is on, 1 if the previous statement had another session, and the number of replaced
	// settings. A setting that the server does not have is NULL.
	replaceSQL = `SELECT coalesce(bool_or(differs AND (name <> 'max_parallel_workers_per_gather'
			OR current_setting('parallel_setup_cost')::float8 < 1000
			OR coalesce(current_setting('debug_parallel_query', true),
				current_setting('force_parallel_mode', true)) <> 'off')), false)::int::bigint,
		(current_setting('jit_above_cost')::float8 BETWEEN 0 AND 99999)::int::bigint,
	(current_setting('jit') <> 'off')::int::bigint, count(CASE WHEN differs
		THEN set_config(name, value, true) END)
FROM (SELECT name, '0' AS value, current_setting(name, true) <> '0' AS differs
	FROM unnest('{statement_timeout,lock_timeout,transaction_timeout,
		idle_in_transaction_session_timeout}'::text[]) AS t(name)
	UNION ALL
	SELECT name, 'on', current_setting(name, true) <> 'on'
	FROM unnest('{enable_bitmapscan,enable_hashagg,enable_hashjoin,enable_indexonlyscan,enable_indexscan,
		enable_material,enable_memoize,enable_mergejoin,enable_nestloop,enable_partition_pruning,
		enable_seqscan,enable_sort,enable_tidscan}'::text[]) AS e(name)
	UNION ALL
	VALUES ('plan_cache_mode', 'auto', current_setting('plan_cache_mode') <> 'auto'),
		('work_mem', '4MB', pg_size_bytes(current_setting('work_mem')) < 4194304),
		('from_collapse_limit', '8', current_setting('from_collapse_limit')::int < 8),
		('join_collapse_limit', '8', current_setting('join_collapse_limit')::int < 8),
		('max_parallel_workers_per_gather', '0', current_setting('max_parallel_workers_per_gather') <> '0')
) AS s`
)

// GuardSQL is a guard for a text of several commands. statement_timeout still applies to its first command.
const GuardSQL = jitSQL + `;
` + replaceSQL + `;
`

// AllRowsSQL makes the statements of its transaction fail where row level security would hide rows.
const AllRowsSQL = `SELECT set_config('row_security', 'off', true)`

// Guard returns statements with a guard before each transaction that can have one. If plain is set, the guard
// only turns off JIT; set it while no setting does harm.
func Guard(statements []*pgdb.Statement, plain bool) []*pgdb.Statement {
	guarded := make([]*pgdb.Statement, 0, 4*len(statements))
	begins := true
	for _, s := range statements {
		if begins && !s.Alone {
			guarded = append(guarded, &pgdb.Statement{SQL: showSQL, Joined: true},
				&pgdb.Statement{SQL: jitSQL, Joined: true})
			if !plain {
				guarded = append(guarded, &pgdb.Statement{SQL: replaceSQL, Joined: true})
			}
		}
		guarded = append(guarded, s)
		begins = !s.Joined
	}
	return guarded
}

// isGuard reports whether Guard added the statement.
func isGuard(s *pgdb.Statement) bool {
	return s.SQL == showSQL || s.SQL == jitSQL || s.SQL == replaceSQL
}

// withoutGuard returns the statements that Guard did not add.
func withoutGuard(statements []*pgdb.Statement) []*pgdb.Statement {
	var own []*pgdb.Statement
	for _, s := range statements {
		if !isGuard(s) {
			own = append(own, s)
		}
	}
	return own
}

// began reports whether a statement that Guard did not add has begun in the first transaction of statements.
// answered is the number of answered statements, and started reports whether the next one has begun.
func began(statements []*pgdb.Statement, answered int, started bool) bool {
	for _, s := range statements {
		if !isGuard(s) {
			break
		}
		answered--
	}
	return answered > 0 || answered == 0 && started
}

// ErrSeveralSessions is the error of a transaction to which a pooler gave several sessions. Its statements
// are then not one transaction, and each leaves locks behind.
var ErrSeveralSessions = errors.New(
	"the pooler gives the statements of a transaction different sessions, as PgBouncer may with " +
		"pool_mode = statement: use pool_mode = transaction or session")

// ReadGuards reads the results of the guards in statements. uses is the number of times that the connection
// may be used without a guard: 0 if a setting does harm by the last guard, or if that is unknown. err is
// ErrSeveralSessions if the statements of a guard had different sessions, and nil otherwise.
func ReadGuards(statements []*pgdb.Statement) (uses int, err error) {
	uses = 0 // Yaegi begins with the caller's value
	jit := false
	for _, s := range statements {
		switch s.SQL {
		case showSQL:
			jit = string(s.Result) != "\x00\x00\x00\x03off"
		case replaceSQL:
			uses = 0
			flags := Bigints(s.Result)
			if len(flags) != 4 {
				continue
			}
			if flags[2] == 1 {
				return uses, ErrSeveralSessions
			}
			if flags[0] == 0 && (!jit || flags[1] == 0) {
				uses = recheck
			}
		}
	}
	return uses, nil
}

// HarmfulSQL returns a text that names the settings that a guard cannot undo, and the statements that
// correct them, or NULL.
const HarmfulSQL = `SELECT string_agg(problem, '; ') FROM (
	SELECT format('%s is %s, %s: ALTER ROLE %I IN DATABASE %I SET %s = %L', name, current_setting(name),
		effect, session_user, current_database(), name, value) AS problem
	FROM (VALUES ('default_transaction_read_only', 'off', 'so that nothing can be counted or written'),
		('default_transaction_isolation', 'read committed',
			'so that a decision is made again if another one was made at the same time'),
		('idle_session_timeout', '0', 'so that a request after a pause waits for a new connection'))
			AS s(name, value, effect)
	WHERE current_setting(name) <> value
	UNION ALL
	SELECT format('search_path is %s, which has no schema that exists: '
		'ALTER ROLE %I IN DATABASE %I SET search_path = public',
		current_setting('search_path'), session_user, current_database())
	WHERE current_schema() IS NULL
	UNION ALL
	SELECT
		format('the language plpgsql is missing or may not be used: CREATE EXTENSION IF NOT EXISTS plpgsql, '
		'and GRANT USAGE ON LANGUAGE plpgsql TO %I', session_user)
	WHERE NOT coalesce((SELECT has_language_privilege(l.oid, 'USAGE') FROM pg_language l
		WHERE l.lanname = 'plpgsql'), false)) AS p`

// harmfulTimeout bounds the query of Harmful.
const harmfulTimeout = 2 * time.Second

// Harmful returns an error that names the settings that a guard cannot undo, each with the statement
// that corrects it for new connections. It returns nil if there are none, or if the query fails.
func Harmful(ctx context.Context, db pgdb.DB) error {
	s := &pgdb.Statement{SQL: HarmfulSQL, Unnamed: true, Alone: true} // a guard needs plpgsql
	if db.Run(ctx, harmfulTimeout, []*pgdb.Statement{s}) != nil {
		return nil
	}
	return HarmfulError(s)
}

// HarmfulError returns the error of Harmful by a finished statement HarmfulSQL.
func HarmfulError(s *pgdb.Statement) error {
	columns, err := Columns(s.Result)
	if err != nil || len(columns) != 1 || columns[0] == nil {
		return nil
	}
	return errors.New("a setting of the role, the database or the server does harm: " + string(columns[0]))
}

// Explain adds the result of Harmful to failure, unless failure is nil or that of a connection.
func Explain(ctx context.Context, db pgdb.DB, failure error) error {
	if failure == nil || errors.Is(failure, pgdb.ErrConnectionLost) || errors.Is(failure, pgdb.ErrNoAnswer) {
		return failure
	}
	if harmful := Harmful(ctx, db); harmful != nil {
		return fmt.Errorf("%w; %w", failure, harmful)
	}
	return failure
}
