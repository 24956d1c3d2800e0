package edge

import (
	"net/http"
	"strconv"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Reply is an answer on its way to a client: SetHeaders and Refuse for many
// requests at once. To an interpreter a loop over them is cheap, and a call for
// each is dear.
type Reply struct {
	Header   http.Header
	Decision *ratelimit.Decision
	Body     string // of a refusal, for status 429; "" is none
}

// SetAllHeaders writes the headers of the replies and sets the bodies of
// refusals. What is the same as in the reply before is not made anew.
func SetAllHeaders(replies []Reply) {
	limit, limitText := int64(-1), ""
	reset, resetText := int64(-1), ""
	retry, retryText, body, length := int64(-1), "", "", ""
	for i := range replies {
		d := replies[i].Decision
		if d.Limit != limit {
			limit = d.Limit
			limitText = strconv.FormatInt(limit, 10)
		}
		if seconds := d.Reset.Add(time.Second - 1).Unix(); seconds != reset {
			reset = seconds
			resetText = strconv.FormatInt(reset, 10)
		}
		values := []string{limitText, strconv.FormatInt(d.Remaining, 10), resetText}
		h := replies[i].Header
		h["X-Ratelimit-Limit"] = values[0:1:1]
		h["X-Ratelimit-Remaining"] = values[1:2:2]
		h["X-Ratelimit-Reset"] = values[2:3:3]
		if d.Allowed {
			continue
		}
		seconds := wholeSeconds(d.RetryAfter)
		if seconds != retry {
			retry = seconds
			retryText = strconv.FormatInt(retry, 10)
			body = bodyOf(retry)
			length = strconv.Itoa(len(body))
		}
		if seconds > 0 {
			h["Retry-After"] = []string{retryText}
		}
		h["Content-Type"] = []string{"application/json"}
		h["Content-Length"] = []string{length}
		replies[i].Body = body
	}
}
