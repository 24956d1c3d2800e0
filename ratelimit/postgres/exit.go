package postgres

import (
	"context"
	"sync/atomic"
)

// exitSQL gives slots back. A durable one waits for the disk: else the server may have the slots again after a crash, and nobody
// gives them back a second time. The row of a key that has none gets numbers below 0, which are no slots.
const exitSQL = clockSQL + `
INSERT INTO {table} AS r (prefix, key, slots, expires_at)
SELECT u.prefix, u.key, array_agg(-u.slot), timestamptz '1800-01-01Z'
FROM clock, unnest($2::text[], $3::text[], $4::bigint[]) AS u(prefix, key, slot) GROUP BY 1, 2
ORDER BY u.prefix COLLATE "C", u.key COLLATE "C"
ON CONFLICT (prefix, key) DO UPDATE SET slots = ARRAY(SELECT s FROM unnest(r.slots) s WHERE -s <> ALL (excluded.slots))`

// planExits returns the statements that give slots back, one for each table. What has failed with others has
// a statement for each row, and goes without requests, a few rows at a time: a row may be locked.
func (d *dispatch) planExits() []*exit {
	f := d.engine.flight
	f.mu.Lock()
	defer f.mu.Unlock()
	n := len(f.leaves)
	if n > mostLeaves {
		n = mostLeaves
	}
	idle := d.isIdle()
	retried := 0
	var exits []*exit
	var left []slots
	byTable := map[string]*exit{}
	for _, s := range f.leaves[:n] {
		group := tableName(s.row.Durable)
		if s.failed {
			group += " " + s.row.Prefix + " " + s.row.Key
		}
		e := byTable[group]
		if _, locked := d.engine.locks.has(s.row); locked || s.failed && (!idle || e == nil && retried == mostRetried) {
			left = append(left, s)
			continue
		}
		if e == nil {
			if s.failed {
				retried++
			}
			e = &exit{durable: s.row.Durable}
			byTable[group] = e
			exits = append(exits, e)
		}
		e.slots = append(e.slots, s)
	}
	f.leaves = append(left, f.leaves[n:]...)
	atomic.StoreInt32(&f.waiting, int32(len(f.leaves)))
	return exits
}

// exit gives slots of one table back.
type exit struct {
	durable   bool
	slots     []slots
	statement Statement
}

// write returns the statement.
func (e *exit) write(texts *statements, settings []int64) *Statement {
	var prefixes, keys []string
	var numbers []int64
	for _, s := range e.slots {
		for i := int64(0); i < s.n; i++ {
			prefixes = append(prefixes, s.row.Prefix)
			keys = append(keys, s.row.Key)
			numbers = append(numbers, s.first+i)
		}
	}
	e.statement = Statement{SQL: texts.exit[e.durable], Args: []any{settings, prefixes, keys, numbers}}
	return &e.statement
}

// finishExits keeps what was not given back for a later batch. err is that of the pipeline.
func (d *dispatch) finishExits(exits []*exit, err error) {
	f := d.engine.flight
	for _, e := range exits {
		if e.statement.Err == nil && err == nil {
			continue
		}
		f.mu.Lock()
		for _, s := range e.slots {
			s.failed = s.failed || err == nil
			if s.first>>32 == f.session {
				f.leaves = append(f.leaves, s)
			}
		}
		f.wake()
		f.mu.Unlock()
	}
}

// endFlight gives all slots back and ends the session, before the store is closed.
func endFlight(s *Store) {
	f := s.engine.flight
	f.mu.Lock()
	session := f.session
	f.mu.Unlock()
	if session == 0 || s.engine.server.unavailable() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	// After a failure the session runs out.
	_ = s.engine.server.db.Run(ctx, f.statements(&Statement{SQL: endSQL, Args: []any{session}, Unnamed: true}))
}
