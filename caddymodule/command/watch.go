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
)

// watchFlag is that of all lists.
var watchFlag = flag{name: "watch,f", value: false, usage: "go on with rows that are new, until Ctrl-C"}

const (
	// watchInterval is the time between two looks at a list.
	watchInterval = time.Second
	// mostNew is how many rows a look has at most, unless -n says more.
	mostNew = 1000
	// watchMemory is for how many looks a row is known that is in none of them.
	watchMemory = 240
)

// watch prints a list, and then the rows that are new or have changed, until a signal ends the program. A list that has the
// newest row first is printed with the newest last.
func (c *call) watch(e *entry) error {
	ctx, stop := signal.NotifyContext(c.ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	c.ctx, c.watching = ctx, true
	var widths widths
	seen := map[[sha256.Size]byte]int{} // the last look that had a row
	for look := 1; ctx.Err() == nil; look++ {
		// Before the rows: what becomes visible in between is found twice, and printed once.
		horizon, err := c.db.Horizon(ctx)
		if err != nil {
			return ended(ctx, err)
		}
		all, err := e.list(c)
		if err != nil {
			return ended(ctx, err)
		}
		c.since = horizon
		fresh, err := c.unseen(all, seen, look)
		if err != nil {
			return err
		}
		if flag := c.cmd.Flags().Lookup("number"); look == 1 && flag != nil {
			fresh = fresh[:min(len(fresh), c.number("number"))]
		} else if len(fresh) >= mostNew {
			fmt.Fprintf(c.cmd.ErrOrStderr(), "There are more than %d new rows: the others are left out. Other flags show fewer.\n", mostNew)
		}
		if e.newest {
			slices.Reverse(fresh)
		}
		for _, l := range fresh {
			text := widths.next(l.row)
			if c.json {
				text = l.text
			}
			if _, err := fmt.Fprint(c.cmd.OutOrStdout(), text); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(watchInterval):
		}
	}
	return nil
}

// ended is an error, unless a signal has caused it.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// unseen are the rows of a look that no look had before, with their JSON.
func (c *call) unseen(all []line, seen map[[sha256.Size]byte]int, look int) (fresh []line, err error) {
	for _, l := range all {
		if l.text, err = c.encode(l.value, ""); err != nil {
			return nil, err
		}
		sum := sha256.Sum256([]byte(l.text))
		if seen[sum] == 0 {
			fresh = append(fresh, l)
		}
		seen[sum] = look
	}
	maps.DeleteFunc(seen, func(_ [sha256.Size]byte, last int) bool { return last < look-watchMemory })
	return fresh, nil
}
