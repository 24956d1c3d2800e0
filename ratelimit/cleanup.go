package ratelimit

import (
	"context"
	"fmt"
	"math/rand"
	"time"
)

// cleanupRows is the most that cleanupSQL deletes.
const cleanupRows = 1000

// cleanupSQL deletes up to 1,000 rows of a prefix that have said no more than no
// row would for a minute: a decision under way may have read the clock a while
// ago, and to it they still say more, as to one that comes after the clock was
// set back. It skips rows that a decision holds, and never waits. The order is the
// index's own: without it the planner, who expects a third of all rows to have
// expired, reads the whole table in search of a thousand.
const cleanupSQL = clockSQL + `, gone AS (DELETE FROM {table} WHERE ctid = ANY (ARRAY(
	SELECT ctid FROM {table} WHERE prefix = $2::text AND expires_at <= (SELECT now FROM clock) - interval '1 minute'
	ORDER BY expires_at LIMIT 1000 FOR UPDATE SKIP LOCKED)) RETURNING 1)
SELECT count(*) FROM gone`

// cleanUp deletes expired rows now and then, in the background, one at a time.
func (p *Postgres) cleanUp(plan *plan) {
	var due []*Statement
	for _, wave := range plan.waves {
		for _, g := range wave {
			if g.kind == take && rand.Float64() < p.o.CleanupProbability {
				due = append(due, g.cleanup(p.texts, plan.now)...)
			}
		}
	}
	if len(due) == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cleaning || p.closed {
		return
	}
	p.cleaning = true
	go p.cleanUpNow(due)
}

// cleanupRounds bounds what one cleanup deletes, in statements of 1,000 rows.
const cleanupRounds = 100

func (p *Postgres) cleanUpNow(due []*Statement) {
	defer func() {
		if r := recover(); r != nil {
			p.report(panicError(r))
		}
		p.mu.Lock()
		p.cleaning = false
		p.mu.Unlock()
	}()
	for round := 0; round < cleanupRounds && len(due) > 0; round++ {
		more := due[:0:0]
		for _, s := range due {
			gone := int64(0)
			s.Row = func(columns [][]byte) error {
				gone = bigint(columns[0])
				return nil
			}
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			err := p.db.Run(ctx, []*Statement{s})
			cancel()
			if err == nil {
				err = s.Err
			}
			if err != nil {
				p.mu.Lock()
				closed := p.closed
				p.mu.Unlock()
				if !closed {
					p.report(fmt.Errorf("deleting expired rows: %w", err))
				}
				return
			}
			if gone >= cleanupRows {
				more = append(more, s)
			}
		}
		due = more
	}
}

// cleanup are the statements that delete expired rows of a group's prefixes.
func (g *group) cleanup(texts *statements, now int64) []*Statement {
	table := ephemeralTable
	if g.durable {
		table = durableTable
	}
	var all []*Statement
	seen := map[string]bool{}
	for _, it := range g.items {
		if !seen[it.id.prefix] {
			seen[it.id.prefix] = true
			all = append(all, &Statement{SQL: texts.cleanup[table], Args: []any{now, it.id.prefix}})
		}
	}
	return all
}
