package edge

import (
	"errors"
	"strconv"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// readCost reads the cost of a configuration. Text with a placeholder (a brace) is 0: each request
// gives its own cost, see SetCost.
func readCost(to *Settings, text string) error {
	if strings.Contains(text, "{") {
		return nil
	}
	cost, err := readEvents(text, 1)
	to.Limit.Cost = cost
	return err
}

// readMinCost reads the least cost of a request that gives its own.
func readMinCost(to *Settings, text string) error {
	to.Limit.MinCost = 1
	if text == "" {
		return nil
	}
	least, err := readEvents(text, 0)
	to.Limit.MinCost = least
	return err
}

// checkMinCost checks that a fixed cost has no least one.
func checkMinCost(to *Settings, text string) error {
	if text != "" && to.Limit.Cost != 0 {
		return &ratelimit.FieldError{Value: text, Want: "left out: cost is not a placeholder"}
	}
	return nil
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
