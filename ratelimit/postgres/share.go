package postgres

import (
	"sort"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/core/sqlstate"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// sharedKey is a hit of a key without a row, and the hit's own key and cost. It is charged on the shared row of its
// prefix, or on a copy of that row. A refund only looks at the row of its key: it would make one.
type sharedKey struct {
	hit    int
	key    string
	cost   int64
	copied bool
}

// shareKeys finds the rows of hits on limits with MaxKeys, before all else in a batch, and returns the requests that are
// left to be decided. A hit on the shared row has the key of that row until unshare. Refunds and resets are about
// rows of their own: they never change what other keys share, so a refund of a charge on the shared row is lost.
func (d *dispatch) shareKeys() ([]*request, error) {
	var limit *ratelimit.Limit
	var ids []prefixID
	var max []int
	for _, r := range d.requests {
		for i := range r.call.Hits {
			if l := r.call.Hits[i].Limit; l != limit && l.MaxKeys > 0 {
				limit = l
				ids = append(ids, prefixID{durable: l.Durable, prefix: l.Prefix})
				max = append(max, l.MaxKeys)
			}
		}
	}
	if limit == nil {
		return d.requests, nil
	}
	used, err := d.engine.bounds.use(d.execute, ids, max)
	if err != nil {
		return nil, err
	}
	modes := map[prefixID]keyMode{}
	for i, mode := range used {
		if mode != newRow {
			modes[ids[i]] = mode
		}
	}
	if len(modes) == 0 {
		return d.requests, nil
	}
	rows := map[lease.RowID]bool{} // whether the row counts, or is a new copy
	for _, r := range d.requests {
		for i := range r.call.Hits {
			id := rowOf(&r.call.Hits[i])
			if mayShare(r.call, i, modes[prefixID{durable: id.Durable, prefix: id.Prefix}]) {
				rows[id] = false
			}
		}
	}
	failed, err := d.findRows(rows, modes)
	if err != nil {
		return nil, err
	}
	var left, refused []*request
	var failure error
	d.shared = map[*batch.Call][]sharedKey{}
	for _, r := range d.requests {
		fails := false
		for i := range r.call.Hits {
			h := &r.call.Hits[i]
			id := prefixID{durable: h.Limit.Durable, prefix: h.Limit.Prefix}
			mode := modes[id]
			if !mayShare(r.call, i, mode) {
				continue
			}
			if failed[id] != nil {
				fails = true
				failure = failed[id]
			}
			if mode == oneRow && !rows[rowOf(h)] {
				d.shared[r.call] = append(d.shared[r.call], sharedKey{i, h.Key, h.Cost, false})
				if h.Cost < 0 {
					h.Cost = 1
					h.Peek = true
				} else {
					h.Key = otherKey
				}
			} else if mode == rowCopy && rows[rowOf(h)] {
				d.shared[r.call] = append(d.shared[r.call], sharedKey{i, h.Key, h.Cost, true})
			}
		}
		if fails {
			refused = append(refused, r)
		} else {
			left = append(left, r)
		}
	}
	d.finish(refused, failure)
	if len(d.shared) == 0 {
		return left, nil
	}
	return d.refuseKnown(left), nil
}

// mayShare reports whether the row of a hit of a call is to be found out: of one that charges, or asks, on a prefix that
// has a mode, and of a refund by itself while keys share.
func mayShare(c *batch.Call, i int, mode keyMode) bool {
	h := &c.Hits[i]
	return mode != newRow && h.Limit.MaxKeys > 0 && !c.Reset && (h.Cost > 0 || mode == oneRow && len(c.Hits) == 1)
}

// rowSearch is a statement of findRows.
type rowSearch struct {
	durable        bool
	mode           keyMode
	prefixes, keys []string
	statement      *Statement
}

func newRowSearch(durable bool, mode keyMode) *rowSearch {
	return &rowSearch{durable: durable, mode: mode}
}

// findRows finds out which rows count, of prefixes that share, and makes copies of the shared row, of prefixes that
// do not share any more. It returns the errors of statements by their prefixes.
func (d *dispatch) findRows(rows map[lease.RowID]bool, modes map[prefixID]keyMode) (map[prefixID]error, error) {
	var ids []lease.RowID
	for id := range rows {
		ids = append(ids, id)
	}
	sort.Slice(ids, func(i, j int) bool {
		return ids[i].Prefix < ids[j].Prefix || ids[i].Prefix == ids[j].Prefix && ids[i].Key < ids[j].Key
	})
	var all []*rowSearch
	var statements []*Statement
	for _, mode := range []keyMode{rowCopy, oneRow} {
		for _, durable := range []bool{false, true} {
			s := newRowSearch(durable, mode)
			for _, id := range ids {
				if id.Durable == durable && modes[prefixID{durable: durable, prefix: id.Prefix}] == mode {
					s.prefixes = append(s.prefixes, id.Prefix)
					s.keys = append(s.keys, id.Key)
				}
			}
			if len(s.keys) == 0 {
				continue
			}
			text := haveRowSQL
			if mode == rowCopy {
				text = copyRowSQL
			}
			s.statement = &Statement{SQL: keysSQL(text, durable), Args: []any{d.settings, s.prefixes, s.keys}}
			all = append(all, s)
			statements = append(statements, &Statement{SQL: indexSQL, Joined: true}, s.statement)
		}
	}
	if err := d.execute(statements); err != nil {
		return nil, err
	}
	failed := map[prefixID]error{}
	for _, s := range all {
		if s.statement.Err != nil {
			err := s.statement.Err
			if s.statement.Code == sqlstate.LockNotAvailable {
				err = errLocked
			}
			for _, prefix := range s.prefixes {
				failed[prefixID{durable: s.durable, prefix: prefix}] = err
			}
			continue
		}
		for _, slot := range bigints(s.statement) {
			if slot < 1 || slot > int64(len(s.keys)) {
				return nil, errColumns
			}
			rows[lease.RowID{Durable: s.durable, Prefix: s.prefixes[slot-1], Key: s.keys[slot-1]}] = true
		}
	}
	return failed, nil
}

// unshare gives the hits of calls their own keys and costs back, before the calls are finished.
func (d *dispatch) unshare(calls []*batch.Call) {
	if d.shared == nil {
		return
	}
	for _, c := range calls {
		for _, s := range d.shared[c] {
			c.Hits[s.hit].Key = s.key
			if s.cost < 0 {
				c.Hits[s.hit].Cost = s.cost
				c.Hits[s.hit].Peek = false
			} else if s.hit < len(c.Decisions) && !(s.copied && c.Decisions[s.hit].Allowed) {
				c.Decisions[s.hit].Shared = true
			}
		}
	}
}
