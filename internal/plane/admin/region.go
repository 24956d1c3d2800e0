package admin

import "context"

// Replication is how the policy comes to a region, or goes from its publisher to one.
type Replication struct {
	// Role is "region" or "publisher".
	Role string `json:"role"`
	// Subscription is its name, which is also that of the publisher's slot. It is "" of a region without one.
	Subscription string `json:"subscription"`
	// State is streaming, copying, stopped, disabled or none.
	State string `json:"state"`
	// Silent is for how many seconds the other side has been silent. It is nil if the role may not see it.
	Silent *float64 `json:"silent_seconds"`
	// Errors is how many times the region could not apply a change. Retained is how many bytes of the
	// write-ahead log the publisher keeps for the region.
	Errors   *int64 `json:"errors"`
	Retained *int64 `json:"retained_bytes"`
}

// Replications returns the replication of the policy to this database, if it is a region, and that from it.
func (d *Database) Replications(ctx context.Context) ([]Replication, error) {
	if !d.HasPolicy(ctx) {
		return nil, nil
	}
	return rows[Replication](ctx, d, "SELECT role, subscription, state, silent_seconds, errors, retained_bytes FROM rate_limit_replication ORDER BY role, subscription")
}
