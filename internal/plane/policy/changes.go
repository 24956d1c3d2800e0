package policy

import (
	"context"
	"errors"
	"fmt"

	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// head holds the results of a poll besides the changes.
type head struct {
	Snapshot string // the database snapshot of the poll; "" if the next poll cannot find the changes since
	Server   string // the schema.ServerIdentity for which Snapshot is valid
	Revision string // the revision of the tables
	Applied  int64  // the highest visible change number
	Changed  string // the oldest snapshot that has all applied changes: that of the last poll that found any
}

// maxChanges bounds the changes that a poll handles one by one. After a poll with more changes, all
// identities, rules and bans are read again. pollSQL returns at most maxChanges + 1.
const maxChanges = 1000

// pollSQL returns the changes that became visible since the snapshot $1 of the previous poll. The row with
// Head has the snapshot of this statement. Its Server is schema.ServerIdentity, or "standby" (see
// errStandby), "incomplete" (see errIncomplete), or "version" (see schema.ErrVersion). The change of an
// override is returned as a change of the API key, user or tier that the override is for. If this key was
// deleted, its digest is unknown, and the ref is "gone".
//
// Two kinds of transactions may have become visible since the old snapshot:
//
//   - transactions that began after it: their numbers are at least the old xmax, and below the new xmax
//   - transactions that were in progress then: their numbers are in the old xip
//
// The server returns only the rows of committed transactions. A sequence number cannot replace the snapshots,
// because transactions commit in a different order than they write. Each statement has one snapshot, so no
// change falls between two polls, and no change is returned twice. UNION ALL instead of OR lets the server
// use the index on xid for each kind.
var pollSQL = `WITH head AS MATERIALIZED (SELECT pg_current_snapshot() AS snapshot)
SELECT json_build_object('Head', json_build_object('Snapshot', h.snapshot::text,
	'Applied', coalesce((SELECT max(seq) FROM rate_limit_changes), 0), 'Revision', ` + schema.Revision + `,
	'Server', CASE WHEN pg_is_in_recovery() THEN 'standby' WHEN NOT ` + schema.Whole + ` THEN 'incomplete'
		WHEN NOT ` + schema.Usable + ` THEN 'version' ELSE ` + schema.ServerIdentity + ` END))::text
	FROM head h
UNION ALL
(SELECT json_build_object('Kind', CASE c.kind WHEN 'override' THEN split_part(c.ref, '/', 1) ELSE c.kind END,
	'Ref', CASE c.kind WHEN 'override'
		THEN coalesce(nullif(substr(c.ref, strpos(c.ref, '/') + 1), ''), 'gone') ELSE c.ref END)::text FROM (
	SELECT kind, ref FROM rate_limit_changes
	WHERE xid >= pg_snapshot_xmax($1::text::pg_snapshot)
		AND xid < pg_snapshot_xmax((SELECT snapshot FROM head))
	UNION ALL
	SELECT kind, ref FROM rate_limit_changes
	WHERE xid = ANY (ARRAY(SELECT pg_snapshot_xip($1::text::pg_snapshot)))
) c LIMIT 1001)`

// changes describes changes that polls found.
type changes struct {
	rules      bool
	bans       bool
	bannedKeys bool     // the list of banned API keys
	identities bool     // all identities
	users      []string // the identities of these users
	digests    []string // the identities of the API keys with these hexadecimal digests
}

// allChanged is the result of a poll that cannot determine the changes.
var allChanged = changes{rules: true, bans: true, bannedKeys: true, identities: true}

// errStandby means that the server is a standby.
var errStandby = errors.New("the server is a standby, which does not show transactions in progress: the " +
	"policy must be read from the primary (target_session_attrs=read-write in the DSN)")

// errIncomplete means that triggers of the policy were missing or disabled during a read. Rows may then be
// missing.
var errIncomplete = errors.New("triggers of the policy are missing or disabled: a restore is running or " +
	"has failed. The policy that was read before applies. If no restore is running, repeat the restore, " +
	"or enable the triggers: ALTER TABLE ... ENABLE TRIGGER USER")

// findChanges adds the changes that became visible since p.head to p.due, and sets p.head.
func (p *Policy) findChanges(ctx context.Context) error {
	statement := &pgdb.Statement{SQL: pollSQL, Args: []any{p.head.Snapshot}}
	if p.head.Snapshot == "" {
		statement.Args[0] = nil
	}
	const what = "reading the changes"
	rows, err := read(ctx, p.db, refreshTimeout, what, statement)
	if err != nil {
		return err
	}
	next := head{}
	for _, r := range decode(rows) {
		switch {
		case r.err != nil:
			return fmt.Errorf("%s: %w", what, r.err)
		case r.Head != nil:
			next = *r.Head
		default:
			p.due.add(r.Kind, r.Ref)
		}
	}
	if p.head.Snapshot == "" || len(rows)-1 > maxChanges || next.Server != p.head.Server {
		p.due = allChanged
	}
	next.Changed = p.head.Changed
	if next.Changed == "" || len(rows) > 1 || next.Server != p.head.Server {
		next.Changed = next.Snapshot
	}
	p.head = head{}
	switch next.Server {
	case "standby":
		return errStandby
	case "incomplete":
		return errIncomplete
	case "version":
		return schema.Look(ctx, p.db)
	}
	p.head = next
	return nil
}

// add adds a change. If ref is "", the change concerns all rows of the kind.
func (c *changes) add(kind, ref string) {
	switch kind {
	case "tier", "rule", "limit", "price":
		c.rules = true
	case "ban":
		c.bans = true
	case "user":
		c.users = append(c.users, ref)
		c.identities = c.identities || ref == ""
	case "key":
		c.digests = append(c.digests, ref)
		c.identities = c.identities || ref == ""
	default:
		c.identities = true
		c.rules = true
	}
}
