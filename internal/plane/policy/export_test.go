package policy

import (
	"context"

	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// Poller polls as a Policy does, and shows what it finds.
type Poller struct{ poller }

// NewPoller returns a poller.
func NewPoller(db postgres.DB) *Poller { return &Poller{poller{db: db}} }

// Poll returns the numbers of the changes that have become visible, and whether there were
// too many to name.
func (p *Poller) Poll(ctx context.Context) (lines []int64, everything bool, err error) {
	found, err := p.poll(ctx)
	return found.lines, found.everything, err
}

// Snapshot is the server's snapshot of the last poll.
func (p *Poller) Snapshot() string { return p.snapshot }

// PollSQL is the statement of a poll.
const PollSQL = pollSQL

// ServerSQL is the statement that tells servers apart.
const ServerSQL = serverSQL
