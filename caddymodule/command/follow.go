package command

import (
	"encoding/json"
	"fmt"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	// followInterval is the time between two queries for new decisions.
	followInterval = time.Second
	// followWindow is the age of the oldest row that a query returns. Proxies usually write within seconds.
	// Rows that they write later, after an outage of the database, are left out.
	followWindow = "2m"
	// maxNew bounds the rows of a query, unless -n is larger.
	maxNew = 1000
)

// follow prints the newest decisions, then each new one as proxies write it, the newest last. It returns on
// SIGINT or SIGTERM.
func (c *invocation) follow() error {
	ctx, stop := signal.NotifyContext(c.ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	c.ctx = ctx
	shown, err := strconv.Atoi(c.value("number"))
	c.values["number"] = strconv.Itoa(max(shown, maxNew))
	p := printer{hidden: strings.Fields(c.jsonOnly), headers: []string{}}
	var seen map[int64]bool // the ids of the rows of the last query, nil before the first
	for err == nil {
		if seen, err = c.followOnce(&p, seen, shown); err != nil {
			break
		}
		select {
		case <-ctx.Done():
		case <-time.After(followInterval):
		}
		var since []string
		since, err = c.parse([]input{{text: followWindow, kind: ago}})
		c.values["since"], c.values["until"] = strings.Join(since, ""), "infinity"
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// followOnce prints the rows of a query that are not in seen, and returns the ids of all its rows. The first
// query prints at most shown.
func (c *invocation) followOnce(p *printer, seen map[int64]bool, shown int) (map[int64]bool, error) {
	// Read the snapshot's xmin before the rows. The next query returns the rows from that transaction on, so
	// it misses none. Rows that both queries return are dropped by their ids.
	horizon, err := c.scalar("pg_snapshot_xmin(pg_current_snapshot())")
	if err != nil {
		return nil, err
	}
	found, err := c.rows(auditSQL)
	if err != nil {
		return nil, err
	}
	c.values["horizon"] = *horizon
	var fresh []json.RawMessage
	ids := map[int64]bool{}
	for _, row := range found {
		var audited struct{ ID int64 }
		if err := json.Unmarshal(row, &audited); err != nil {
			return nil, err
		}
		if ids[audited.ID] = true; !seen[audited.ID] {
			fresh = append(fresh, row)
		}
	}
	if seen == nil {
		fresh = fresh[:min(len(fresh), shown)]
	} else if len(fresh) >= maxNew {
		fmt.Fprintf(c.cmd.ErrOrStderr(), "There are more than %d new rows: the others are left out. "+
			"Other flags show fewer.\n", maxNew)
	}
	slices.Reverse(fresh)
	if !c.json {
		p.table(fresh)
		defer p.Reset()
		return ids, c.printf("%s", p.String())
	}
	for _, row := range fresh {
		text, err := c.encode(row, "")
		if err == nil {
			err = c.printf("%s", text)
		}
		if err != nil {
			return nil, err
		}
	}
	return ids, nil
}
