package policy

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// poller finds out what has been changed, see pollSQL. It is used by one goroutine at a time.
type poller struct {
	db pgdb.DB

	// snapshot is the server's snapshot at the last successful poll. If it is "", the next poll
	// says that everything has changed.
	snapshot string
	// server identifies the server, since a snapshot means something only there. It has the
	// system identifier, the timeline (a failover and a restore change it), the start of the
	// server (a crash before it may have lost the last transactions), and the database.
	server string
	// tables identifies the tables: those that were made again, by a restore for example, have
	// other numbers. log is the number of rate_limit_changes.
	tables, log string
	// files changes with every TRUNCATE. unlogged is by how many the rows that were ever written
	// outnumber the lines in the log, as of a poll that agreed with the one before. last is that
	// of the last poll.
	files          string
	unlogged, last int64
}

// maxChanges is how many changes are looked at one by one. A poll that finds more says that
// everything has changed.
const maxChanges = 1000

// pollSQL returns what has become visible since the snapshot $1, which is that of the poll
// before, with the snapshot of this statement in the first row.
//
// A transaction has become visible if it began between the two snapshots (its number is at least
// xmax of the old snapshot, and below xmax of the new one), or if it was under way at the old
// snapshot (it is in xip). The server itself returns only rows of transactions that have
// committed. A sequence number would not do: transactions become visible in another order than
// they write. One statement has one snapshot, so that no change falls between two polls and none
// is seen twice. UNION ALL instead of OR lets both halves use the index.
const pollSQL = `WITH head AS MATERIALIZED (SELECT pg_current_snapshot() AS snapshot)
SELECT 'head', h.snapshot::text, coalesce((SELECT max(seq) FROM rate_limit_changes), 0)::text,
	CASE WHEN pg_is_in_recovery() THEN 'standby' WHEN NOT ` + schema.PolicyWhole + ` THEN 'incomplete' END
	FROM head h
UNION ALL
(SELECT c.kind, c.ref, c.seq::text, (c.ref IS NULL)::text FROM (
	SELECT kind, ref, seq FROM rate_limit_changes
	WHERE xid >= pg_snapshot_xmax($1::text::pg_snapshot) AND xid < pg_snapshot_xmax((SELECT snapshot FROM head))
	UNION ALL
	SELECT kind, ref, seq FROM rate_limit_changes WHERE xid = ANY (ARRAY(SELECT pg_snapshot_xip($1::text::pg_snapshot)))
) c LIMIT 1001)`

// serverSQL identifies the server, see poller. It fails if the server does not have these
// functions, or if the role may not call them. A failover is then noticed when the rules are
// read anew.
const serverSQL = `SELECT CASE WHEN pg_is_in_recovery() THEN '' ELSE left(pg_walfile_name(pg_current_wal_lsn()), 8) END
	|| ' ' || (SELECT system_identifier FROM pg_control_system()) || ' ' || pg_postmaster_start_time()
	|| ' ' || current_database()`

// numbersSQL are the numbers of the tables that identities and rules are read from.
const numbersSQL = `concat_ws(' ', 'rate_limit_tiers'::regclass::oid, 'rate_limit_users'::regclass::oid,
	'rate_limit_api_keys'::regclass::oid, 'rate_limit_rules'::regclass::oid, 'rate_limit_rule_limits'::regclass::oid,
	'rate_limit_overrides'::regclass::oid, 'rate_limit_bans'::regclass::oid, 'rate_limit_changes'::regclass::oid)`

// tablesSQL identifies the tables, and tells by how many the rows that were ever written
// outnumber the lines in the log. A session publishes both counts together, at most 10 s after a
// transaction. If it is stalled between the two, polls may read everything once more than needed.
const tablesSQL = `SELECT ` + numbersSQL + `, 'rate_limit_changes'::regclass::oid::text,
	string_agg(pg_relation_filenode(t.oid)::text, ' '),
	(sum(pg_stat_get_tuples_inserted(t.oid) + pg_stat_get_tuples_updated(t.oid) + pg_stat_get_tuples_deleted(t.oid))
	- pg_stat_get_tuples_inserted('rate_limit_changes'::regclass))::text
FROM unnest(ARRAY['rate_limit_tiers'::regclass, 'rate_limit_users', 'rate_limit_api_keys', 'rate_limit_rules',
	'rate_limit_rule_limits', 'rate_limit_overrides', 'rate_limit_bans']) AS t(oid)`

// changes is what a poll has found.
type changes struct {
	everything bool // rules, bans and identities
	rules      bool
	bans       bool
	keys       bool     // which API keys are banned
	identities bool     // all of them
	users      []string // identities of these users
	digests    []string // identities of these API keys, as hexadecimal digests
	applied    int64    // the highest number of a change that is visible
}

// errStandby is the error of a poll of a server that only replays another one.
var errStandby = errors.New("the server is a standby, must be the primary (target_session_attrs=read-write in the DSN): " +
	"a standby does not tell which transactions are under way")

// errIncomplete is for what was read while the policy did not have all its triggers, or had some disabled: rows may be missing.
var errIncomplete = errors.New("triggers of the policy are missing or disabled, as during a restore and after one that has failed: " +
	"what was read before is kept. If no restore is under way, repeat the restore, or make the triggers with: caddy pg-ratelimit migrate")

// poll returns what has become visible since the last poll that returned no error. After a
// failed poll the next one returns that as well.
func (p *poller) poll(ctx context.Context) (changes, error) {
	statement := &pgdb.Statement{SQL: pollSQL, Args: []any{p.snapshot}}
	if p.snapshot == "" {
		statement.Args[0] = nil
	}
	server := &pgdb.Statement{SQL: serverSQL}
	tables := &pgdb.Statement{SQL: tablesSQL}
	if err := p.db.Run(ctx, []*pgdb.Statement{server, tables, statement}); err != nil {
		return changes{}, unavailable(err)
	}
	now, err := texts(tables, 4)
	rows, failed := texts(statement, 4)
	if err == nil {
		err = failed
	}
	if err == nil && len(now) != 4 {
		err = errColumns
	}
	if err != nil {
		return changes{}, fmt.Errorf("reading the changes: %w", err)
	}
	identity := "" // see serverSQL
	if columns, err := texts(server, 1); err == nil && len(columns) == 1 {
		identity = columns[0]
	}
	head := 0
	for head < len(rows) && rows[head] != "head" {
		head += 4
	}
	if head == len(rows) {
		return changes{}, fmt.Errorf("reading the changes: %w", errColumns)
	}
	switch rows[head+3] {
	case "standby":
		p.snapshot = ""
		return changes{}, errStandby
	case "incomplete":
		p.snapshot = ""
		return changes{}, errIncomplete
	}
	var found changes
	var unlogged int64
	if _, err := fmt.Sscan(rows[head+2]+" "+now[3], &found.applied, &unlogged); err != nil {
		return changes{}, fmt.Errorf("reading the changes: %w", err)
	}
	found.everything = p.snapshot == "" || identity != p.server || now[0] != p.tables || len(rows)/4-1 > maxChanges
	// Rows were written without a line in the log.
	written := now[2] != p.files || unlogged == p.last && unlogged > p.unlogged
	if found.everything || unlogged == p.last {
		p.unlogged = unlogged
	}
	found.everything = found.everything || written
	p.last = unlogged
	p.snapshot = rows[head+1]
	p.server = identity
	p.tables = now[0]
	p.log = now[1]
	p.files = now[2]
	for i := 0; i < len(rows) && !found.everything; i += 4 {
		if i != head {
			found.add(rows[i], rows[i+1], rows[i+3] == "true")
		}
	}
	return found, nil
}

// add adds a line of the log. all is a line about all rows of a table.
func (c *changes) add(kind, ref string, all bool) {
	switch kind {
	case "tier", "rule", "limit":
		c.rules = true
		return
	case "user":
		c.identities = c.identities || all
		c.users = append(c.users, ref)
		return
	case "key":
		c.identities = c.identities || all
		c.digests = append(c.digests, ref)
		return
	}
	if kind == "ban" {
		c.bans = true
		return
	}
	// An override: ref says what it is for.
	of := strings.SplitN(ref, "/", 2)
	switch {
	case !all && of[0] == "tier":
		c.rules = true
	case !all && of[0] == "user" && len(of) == 2:
		c.users = append(c.users, of[1])
	case !all && of[0] == "key" && len(of) == 2:
		c.digests = append(c.digests, of[1])
	default:
		c.identities = true
		c.rules = true
	}
}
