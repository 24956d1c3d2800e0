package edge

import (
	"errors"
	"strconv"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

const (
	wantCost    = "a whole number from 1 to 9007199254740992, or a placeholder that gives one"
	wantMinCost = "a whole number from 0 to 9007199254740992"
)

// ParseCost reads the cost of a configuration: "" is 1. Text with a placeholder (a brace)
// is 0: each request gives its own cost, see SetCost.
func ParseCost(text string) (int64, error) {
	if text == "" {
		return 1, nil
	}
	if strings.Contains(text, "{") {
		return 0, nil
	}
	cost, err := strconv.ParseInt(text, 10, 64)
	if err != nil || cost < 1 || cost > ratelimit.MaxEvents {
		return 0, &ratelimit.FieldError{Field: "cost", Value: text, Want: wantCost}
	}
	return cost, nil
}

// ParseMinCost reads the least cost of a request that gives its own: "" is 1. cost is the
// result of ParseCost: a fixed cost has no least one.
func ParseMinCost(text string, cost int64) (int64, error) {
	if text == "" {
		return 1, nil
	}
	least, err := strconv.ParseInt(text, 10, 64)
	if err != nil || least < 0 || least > ratelimit.MaxEvents {
		return 0, &ratelimit.FieldError{Field: "min_cost", Value: text, Want: wantMinCost}
	}
	if cost != 0 {
		return 0, &ratelimit.FieldError{Field: "min_cost", Value: text, Want: "left out: cost is not a placeholder"}
	}
	return least, nil
}

// maxRequestCost is more than any quota.
const maxRequestCost = 1 << 62

// SetCost gives a hit the cost that a placeholder gave for a request. Clients often choose
// that text, and must get neither a refund nor a free pass out of it: the cost is at least
// least, and text that is not a whole number of 0 or more counts as the higher of 1 and
// least. A cost of 0 is possible only if least is 0: the hit then needs a remaining quota
// of 1 and charges nothing.
func SetCost(hit *ratelimit.Hit, text string, least int64) {
	cost, err := strconv.ParseUint(text, 10, 64)
	switch {
	case err != nil && !errors.Is(err, strconv.ErrRange):
		hit.Cost = 1
	case err != nil:
		hit.Cost = maxRequestCost
	case cost > maxRequestCost:
		hit.Cost = maxRequestCost
	default:
		hit.Cost = int64(cost)
	}
	if hit.Cost < least {
		hit.Cost = least
	}
	if hit.Cost == 0 {
		hit.Cost = 1
		hit.Peek = true
	}
}
