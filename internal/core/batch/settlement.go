package batch

import "github.com/pgratelimit/pg-ratelimit/ratelimit"

// Settlement corrects the charge of a request to its real cost.
type Settlement struct {
	Limit     *ratelimit.Limit
	Key       string // the stored key
	Subject   string // Hit.Subject
	Back      int64  // the cost to refund, or to charge in addition if it is negative
	DecidedAt int64  // Decision.DecidedAt of the charge
	Reset     int64  // Decision.Reset of the charge, in microseconds
	Source    ratelimit.Source
}
