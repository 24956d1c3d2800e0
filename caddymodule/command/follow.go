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
	// followedTime is the age of the oldest row that a query returns. A proxy writes within seconds: what it
	// writes later, after an outage of the database, is left out.
	followedTime = 2 * time.Minute
	// mostNew bounds the rows of a query, unless -n is larger.
	mostNew = 1000
	// followMemory is the number of queries after which a row is forgotten that none of them returned.
	followMemory = 240
)

// follow prints the newest decisions, and then those that proxies write, the newest last. It returns when a
// signal ends the program.
func (c *call) follow() (err error) {
	ctx, stop := signal.NotifyContext(c.ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	c.ctx = ctx
	most := get[string](c, "number")
	shown := 0
	if _, err := fmt.Sscan(most, &shown); err != nil {
		return err
	}
	c.values["number"] = fmt.Sprint(max(shown, mostNew))
	p := printer{hide: strings.Fields(c.hide), headers: []string{}}
	seen := map[[sha256.Size]byte]int{} // the last query that returned a row
	for query := 1; err == nil; query++ {
		if err = c.followOnce(&p, seen, query, shown); err != nil {
			break
		}
		select {
		case <-ctx.Done():
		case <-time.After(followInterval):
			err = c.tick()
		}
		if ctx.Err() != nil {
			return nil
		}
		c.values["since"], c.values["until"] = stamp(c.now.Add(-followedTime)), stamp(c.now.Add(followedTime))
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (c *call) followOnce(p *printer, seen map[[sha256.Size]byte]int, query, shown int) error {
	// Before the rows: what becomes visible in between is found twice, and printed once. Transactions become
	// visible in another order than they begin and write: what a query has not had before belongs to one from
	// the horizon of the query before on.
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
	} else if len(fresh) >= mostNew {
		fmt.Fprintf(c.cmd.ErrOrStderr(), "There are more than %d new rows: the others are left out. "+
			"Other flags show fewer.\n", mostNew)
	}
	slices.Reverse(fresh)
	if !c.json {
		p.table(fresh)
		defer p.Reset()
		return c.say("%s", p.String())
	}
	for _, row := range fresh {
		text, err := c.encode(row, "")
		if err == nil {
			err = c.say("%s", text)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
