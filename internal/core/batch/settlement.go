package batch

import "github.com/pgratelimit/pg-ratelimit/ratelimit"

// MostOwnCalls is how many of a store's own calls, such as settlements, go with a batch: more would delay its requests.
const MostOwnCalls = 500

// Settlement is what is known of a request's cost afterwards.
type Settlement struct {
	Limit     *ratelimit.Limit
	Key       string // as it is stored
	Subject   string // of the hit
	Back      int64  // what is to be given back of the charge, or charged in addition if it is below 0
	DecidedAt int64  // of the decision on the charge
	Reset     int64  // likewise, in microseconds
	Source    ratelimit.Source
}
