package command

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	// followInterval is the time between two queries for new decisions.
	followInterval = time.Second
	// followWindow is the age of the oldest row that a query returns. Proxies usually write within seconds.
	// Rows that they write later, after an outage of the database, are left out.
	followWindow = 2 * time.Minute
	// maxNew bounds the rows of a query, unless -n is larger.
	maxNew = 1000
	// followMemory bounds the memory of rows: a row's hash is dropped after so many queries that did not
	// return the row.
	followMemory = 240
)

// follow prints the newest decisions, then each new one as proxies write it, the newest last. It returns on
// SIGINT or SIGTERM.
func (c *invocation) follow() (err error) {
	ctx, stop := signal.NotifyContext(c.ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	c.ctx = ctx
	most := get[string](c, "number")
	shown := 0
	if _, err := fmt.Sscan(most, &shown); err != nil {
		return err
	}
	c.values["number"] = fmt.Sprint(max(shown, maxNew))
	p := printer{hidden: strings.Fields(c.jsonOnly), headers: []string{}}
	seen := map[[sha256.Size]byte]int{} // the hash of a row → the last query that returned it
	for query := 1; err == nil; query++ {
		if err = c.followOnce(&p, seen, query, shown); err != nil {
			break
		}
		select {
		case <-ctx.Done():
		case <-time.After(followInterval):
			err = c.readClock()
		}
		if ctx.Err() != nil {
			return nil
		}
		c.values["since"] = formatTime(c.now.Add(-followWindow))
		c.values["until"] = formatTime(c.now.Add(followWindow))
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// followOnce prints the rows of a query that no earlier query returned. The first query prints at most shown.
func (c *invocation) followOnce(p *printer, seen map[[sha256.Size]byte]int, query, shown int) error {
	// Read the snapshot's xmin before the rows. The next query returns the rows from that transaction on, so
	// it misses none. Rows that both queries return are dropped by their hash.
	horizon, err := c.scalar("pg_snapshot_xmin(pg_current_snapshot())")
	if err != nil {
		return err
	}
	found, err := c.rows(auditSQL)
	if err != nil {
		return err
	}
	c.values["horizon"] = *horizon
	var fresh []json.RawMessage
	for _, row := range found {
		sum := sha256.Sum256(row)
		if seen[sum] == 0 {
			fresh = append(fresh, row)
		}
		seen[sum] = query
	}
	maps.DeleteFunc(seen, func(_ [sha256.Size]byte, last int) bool { return last < query-followMemory })
	if query == 1 {
		fresh = fresh[:min(len(fresh), shown)]
	} else if len(fresh) >= maxNew {
		fmt.Fprintf(c.cmd.ErrOrStderr(), "There are more than %d new rows: the others are left out. "+
			"Other flags show fewer.\n", maxNew)
	}
	slices.Reverse(fresh)
	if !c.json {
		p.table(fresh)
		defer p.Reset()
		return c.printf("%s", p.String())
	}
	for _, row := range fresh {
		text, err := c.encode(row, "")
		if err == nil {
			err = c.printf("%s", text)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
