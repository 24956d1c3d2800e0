package command

import (
	"context"
	"encoding/json"
	"fmt"
	"os/signal"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
)

// followInterval is the time between two reads of new rows.
const followInterval = time.Second

// follow prints rows of the audit log, and then new ones, until a signal ends the program.
func (c *call) follow(q *admin.AuditQuery) error {
	ctx, stop := signal.NotifyContext(c.ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	follower := c.db.Follow(q)
	encoder := json.NewEncoder(c.cmd.OutOrStdout())
	encoder.SetEscapeHTML(false)
	var widths widths
	for ctx.Err() == nil {
		found, more, err := follower.Next(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		hideInAll(found)
		for i := range found {
			if c.json {
				err = encoder.Encode(&found[i])
			} else {
				_, err = fmt.Fprint(c.cmd.OutOrStdout(), widths.lines(auditRow(&found[i])))
			}
			if err != nil {
				return err
			}
		}
		if more {
			fmt.Fprintf(c.cmd.ErrOrStderr(), "There are more than %d new rows: the others are left out. --decision, --rule or --user show fewer.\n", admin.MostFollowed)
		}
		sleep(ctx, followInterval)
	}
	return nil
}

// sleep waits, until the context ends at most.
func sleep(ctx context.Context, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	<-ctx.Done()
}

// widths are the widths of the columns of a table whose rows are not known yet. They only grow.
type widths []int

// lines is the line of a row, after that of the header if the row is the first.
func (w *widths) lines(r row) string {
	var t table
	t.addRow(r)
	if *w == nil {
		*w = make(widths, len(t[0]))
	} else {
		t = t[1:]
	}
	for _, cells := range t {
		for i, text := range cells {
			(*w)[i] = max((*w)[i], utf8.RuneCountInString(text))
		}
	}
	var all strings.Builder
	for _, cells := range t {
		line := ""
		for i, text := range cells {
			line += text + strings.Repeat(" ", (*w)[i]-utf8.RuneCountInString(text)+2)
		}
		all.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return all.String()
}
