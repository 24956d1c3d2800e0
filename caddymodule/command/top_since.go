package command

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
)

// topSince lists the senders of the most requests in a period.
func (t *tool) topSince(ctx context.Context, db *admin.Database, cmd *cobra.Command, in *times, prefix string, most int) error {
	p, err := in.period(ctx, db)
	if err != nil {
		return err
	}
	senders, err := db.TopSince(ctx, p, prefix, most)
	if err != nil {
		return err
	}
	list := table{
		header: []string{"PREFIX", "KEY", "USER", "REQUESTS", "REFUSED", "LAST"},
		empty:  "No such request is in the audit log " + periodText(p) + ".\n" + recording,
	}
	for i := range senders {
		s := &senders[i]
		hideIn(s.Key, s.User)
		list.add(text(s.Prefix), optional(s.Key), optional(s.User), whole(s.Requests), whole(s.Refused), moment(s.Last))
	}
	return t.showTable(cmd, senders, list)
}
