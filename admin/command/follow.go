package command

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// followInterval is the time between two queries for new rows.
	followInterval = time.Second
	// followWindow is the age of the oldest row that a query after the first returns. Proxies usually write a
	// row within seconds. If a proxy writes a row more than followWindow after the request, because the
	// database was down, the row is not printed.
	followWindow = "2m"
	// maxRowsPerQuery bounds the rows that a query returns. A larger -n replaces maxRowsPerQuery.
	maxRowsPerQuery = 1000
)

// follow prints the newest rows of the audit log, then each new row, always with the newest row last. follow
// returns on SIGINT or SIGTERM.
func (c *invocation) follow() error {
	ctx, stop := c.untilSignal()
	defer stop()
	c.ctx = ctx
	initialRows, err := strconv.Atoi(c.value("number"))
	c.values["number"] = strconv.Itoa(max(initialRows, maxRowsPerQuery))
	p := printer{hidden: strings.Fields(c.jsonOnly), continues: true}
	var seenIDs map[int64]bool // the ids of the rows of the last query, nil before the first
	for err == nil {
		if seenIDs, err = c.followOnce(&p, seenIDs, initialRows); err != nil {
			break
		}
		select {
		case <-ctx.Done():
		case <-time.After(followInterval):
		}
		var since *string
		if since, err = c.scalar("now() - interval '" + followWindow + "'"); err == nil {
			c.values["since"], c.values["until"] = *since, "infinity"
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// followOnce queries once, prints the rows that are not in seenIDs, and returns the ids of all rows. The
// first query, with a nil seenIDs, prints at most initialRows.
func (c *invocation) followOnce(p *printer, seenIDs map[int64]bool, initialRows int) (map[int64]bool, error) {
	// Read the snapshot's xmin before the rows. The next query returns the rows of all transactions from this
	// xmin on, so it misses no row of a transaction that has not committed yet. A row that both queries
	// return is printed once, because it is in seenIDs.
	horizon, err := c.scalar("pg_snapshot_xmin(pg_current_snapshot())")
	if err != nil {
		return nil, err
	}
	rows, err := c.rows(auditSQL)
	if err != nil {
		return nil, err
	}
	c.values["horizon"] = *horizon
	var newRows []json.RawMessage
	ids := map[int64]bool{}
	for _, row := range rows {
		var audited struct{ ID int64 }
		if err := json.Unmarshal(row, &audited); err != nil {
			return nil, err
		}
		if ids[audited.ID] = true; !seenIDs[audited.ID] {
			newRows = append(newRows, row)
		}
	}
	if seenIDs == nil {
		newRows = newRows[:min(len(newRows), initialRows)]
	} else if limit := max(initialRows, maxRowsPerQuery); len(newRows) >= limit {
		fmt.Fprintf(c.cmd.ErrOrStderr(), "There are at least %d new rows: only the newest are printed. "+
			"Use flags that select fewer rows.\n", limit)
	}
	slices.Reverse(newRows)
	return ids, stream(c, p, newRows...)
}
