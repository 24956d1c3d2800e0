package edge

import (
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
	cost, err := readEvents(text)
	to.Limit.Cost = cost
	return err
}

// maxRequestCost is more than any quota.
const maxRequestCost = 1 << 62

// SetCost gives a hit the cost that a placeholder gave for a request. Clients often choose that text, and must get neither a
// refund nor a free pass out of it: 0, and text that is not a whole number, count as 1.
func SetCost(hit *ratelimit.Hit, text string) {
	cost, err := strconv.ParseUint(text, 10, 64)
	switch {
	case cost > maxRequestCost: // also of a number beyond 64 bits
		hit.Cost = maxRequestCost
	case err != nil || cost == 0:
		hit.Cost = 1
	default:
		hit.Cost = int64(cost)
	}
}
