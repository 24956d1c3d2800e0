package policy

import (
	"context"
	"errors"
	"fmt"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// head holds the results of a poll besides the changes.
type head struct {
	Snapshot string // the database snapshot of the poll; "" if the next poll cannot find the changes since
	Server   string // the schema.ServerIdentity for which Snapshot is valid
	Applied  int64  // the highest visible change number
	Changed  string // the snapshot of the last poll that found changes; no others have become visible since
}

// maxChanges bounds the changes that a poll handles one by one. After a poll with more changes, all
// identities, rules and bans are read again. pollSQL returns at most maxChanges + 1.
const maxChanges = 1000

// pollSQL returns the changes that became visible since the snapshot $1 of the previous poll. The row Head
// has the snapshot of this statement, and schema.ServerIdentity unless the server is a standby or the policy
// is incomplete. The change of an override has the kind and the ref of its key, user or tier. The ref of a
// deleted key is "gone".
//
// A transaction became visible if it began between the two snapshots (its number is at least xmax of the old
// snapshot, and below xmax of the new one), or if it was in progress at the old snapshot (it is in xip). The
// server returns only rows of committed transactions. A sequence number is not enough, because transactions
// commit in a different order than they write. Each statement has one snapshot, so no change falls between
// two polls and none is returned twice. UNION ALL instead of OR lets both halves use the index.
const pollSQL = `WITH head AS MATERIALIZED (SELECT pg_current_snapshot() AS snapshot)
SELECT json_build_object('Head', json_build_object('Snapshot', h.snapshot::text,
	'Applied', coalesce((SELECT max(seq) FROM rate_limit_changes), 0), 'Server', CASE WHEN pg_is_in_recovery()
		THEN 'standby' WHEN NOT ` + schema.PolicyWhole + ` THEN 'incomplete'
		ELSE ` + schema.ServerIdentity + ` END))::text
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
var errStandby = errors.New("the server is a standby, must be the primary (target_session_attrs=read-write " +
	"in the DSN): transactions in progress are not visible on a standby")

// errIncomplete means that triggers of the policy were missing or disabled during a read. Rows may then be
// missing.
var errIncomplete = errors.New("triggers of the policy are missing or disabled, as during a restore and " +
	"after one that has failed: what was read before is kept. If no restore is under way, repeat the " +
	"restore, or make the triggers with: caddy pg-ratelimit migrate")

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
	}
	p.head = next
	return nil
}

// add adds a change. If ref is "", the change concerns all rows of the kind.
func (c *changes) add(kind, ref string) {
	switch kind {
	case "tier", "rule", "limit":
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
