package admin

import (
	"context"
	"slices"
	"time"
)

const (
	// MostFollowed is how many new rows of the audit log Next returns at most.
	MostFollowed = 1000
	// followedFor is how far back Next looks for new rows. A proxy writes what happened within seconds. What it
	// writes later, after an outage of the database, is not followed.
	followedFor = 2 * time.Minute
)

// Follower finds the rows that are new in the audit log. Transactions become visible in another order
// than they write. So Next reads the rows of all transactions that were not over at the last call, and
// leaves out those that were returned. A row of the log is never moved in its table.
type Follower struct {
	db    *Database
	query AuditQuery
	least int64                // all transactions below it were over at the last call; 0 before the first
	seen  map[string]time.Time // the times of rows that were found, by their rowIDSQL
}

// Follow returns a follower of the rows that a query finds. The first call of its Next returns those of
// the query, and the others what is new, whatever the end of its Period is.
func (d *Database) Follow(q *AuditQuery) *Follower {
	return &Follower{db: d, query: *q, seen: map[string]time.Time{}}
}

// followedRow is a row of the audit log and its rowIDSQL.
type followedRow struct {
	Audited
	RowID string
}

// rowIDSQL is where a row is stored.
const rowIDSQL = ", tableoid::text || ctid::text"

// newRowsSQL is whether a row is of a transaction from $%d on. xmin has the last 32 bits of the number.
const newRowsSQL = `(((SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint) - xmin::text::bigint) & 4294967295) <=
	(SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint) - $%d::bigint`

// Next returns the rows that are new since the last call, the oldest first, and whether there may be
// more, which are left out.
func (f *Follower) Next(ctx context.Context) (found []Audited, more bool, err error) {
	now, err := f.db.Now(ctx)
	if err != nil {
		return nil, false, err
	}
	// Before the rows: what becomes visible in between is found twice, and left out once.
	least, err := value[int64](ctx, f.db, "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint")
	if err != nil {
		return nil, false, err
	}
	first, most := f.least == 0, f.query.Most
	if !first {
		most = MostFollowed
		f.query.Period = Period{now.Add(-followedFor), now.Add(followedFor)}
	}
	l := f.db.log(ctx, &f.query)
	if !first {
		l.add(newRowsSQL, f.least)
	}
	// The newest first: those that were seen are the oldest. Those beyond most are not new at the next call.
	all := list[followedRow](l.work, l.auditSQL(rowIDSQL, max(most, MostFollowed)), l.args...)
	if l.err != nil {
		return nil, false, l.err
	}
	f.least = *least
	for i := range all {
		if _, seen := f.seen[all[i].RowID]; seen {
			continue
		}
		f.seen[all[i].RowID] = all[i].Time
		if len(found) < most {
			found = append(found, all[i].Audited)
		}
	}
	for rowID, at := range f.seen {
		if at.Before(now.Add(-2 * followedFor)) {
			delete(f.seen, rowID)
		}
	}
	l.names.show(found)
	slices.Reverse(found)
	return found, !first && len(found) == MostFollowed, nil
}
