package command

import "github.com/pgratelimit/pg-ratelimit/internal/plane/admin"

// topSince lists the senders of the most requests in a period.
func (c *call) topSince(in *times, prefix string, most int) error {
	p, err := in.period(c)
	if err != nil {
		return err
	}
	senders, err := c.db.TopSince(c.ctx, p, prefix, most)
	for i := range senders {
		hideIn(senders[i].Key, senders[i].User)
	}
	return showList(c, senders, err, func(s *admin.Sender) row {
		return row{"PREFIX", s.Prefix, "KEY", s.Key, "USER", s.User, "REQUESTS", s.Requests, "REFUSED", s.Refused, "LAST", s.Last}
	}, noneRecorded("request", p))
}
