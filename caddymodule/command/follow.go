package command

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
)

const (
	// followInterval is the time between two queries for new decisions.
	followInterval = time.Second
	// followedTime is the age of the oldest row that a query returns. A proxy writes within seconds: what it writes later,
	// after an outage of the database, is left out.
	followedTime = 2 * time.Minute
	// mostNew bounds the rows of a query, unless -n is larger.
	mostNew = 1000
	// followMemory is the number of queries after which a row is forgotten that none of them returned.
	followMemory = 240
)

// follow prints the newest decisions of a query, and then those that proxies write, the newest last. It returns when
// a signal ends the program.
func (c *call) follow(q *admin.AuditQuery) error {
	ctx, stop := signal.NotifyContext(c.ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	err := c.followUntil(ctx, q)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (c *call) followUntil(ctx context.Context, q *admin.AuditQuery) error {
	shown := q.Most
	q.Most = max(q.Most, mostNew)
	var widths widths
	seen := map[[sha256.Size]byte]int{} // the last query that returned a row
	for query := 1; ; query++ {
		// Before the rows: what becomes visible in between is found twice, and printed once.
		horizon, err := c.db.Horizon(ctx)
		if err != nil {
			return err
		}
		found, err := c.db.Audit(ctx, q)
		if err != nil {
			return err
		}
		type decision struct {
			row  *admin.Row
			json string
		}
		var fresh []decision
		for i := range found {
			text, err := c.encode(&found[i], "")
			if err != nil {
				return err
			}
			sum := sha256.Sum256([]byte(text))
			if seen[sum] == 0 {
				fresh = append(fresh, decision{&found[i], text})
			}
			seen[sum] = query
		}
		maps.DeleteFunc(seen, func(_ [sha256.Size]byte, last int) bool { return last < query-followMemory })
		if query == 1 {
			fresh = fresh[:min(len(fresh), shown)]
		} else if len(fresh) >= mostNew {
			fmt.Fprintf(c.cmd.ErrOrStderr(), "There are more than %d new rows: the others are left out. Other flags show fewer.\n", mostNew)
		}
		for _, d := range slices.Backward(fresh) {
			text := d.json
			if !c.json {
				text = widths.next(auditRow(d.row))
			}
			if _, err := fmt.Fprint(c.cmd.OutOrStdout(), text); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(followInterval):
		}
		now, err := c.db.Now(ctx)
		if err != nil {
			return err
		}
		q.Since = horizon
		q.Period = admin.Period{From: now.Add(-followedTime), Until: now.Add(followedTime)}
	}
}
