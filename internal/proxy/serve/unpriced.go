package serve

import (
	"encoding/json"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
)

// maxShown is the longest name of a model that people read, in bytes.
const maxShown = 100

// nameUnpriced names the model that has no price in the response, in the history and in the log, unless the
// body names none.
func nameUnpriced(q *Request) {
	key := ""
	if q.Verdict.KeyID != 0 {
		key = q.Key
	}
	name := history.CleanText(policy.HideKeys(q.Upload.Prompt.Named, key), maxShown)
	if name == "" {
		return
	}
	q.Upload.unpriced = name
	quoted, _ := json.Marshal(name) // without <, because a page may show it
	q.Outcome.Message = "The model " + string(quoted) + " has no price"
	s := q.Site
	if dropped, ok := s.unpricedModels.AllowName(time.Now(), time.Minute, name); ok {
		s.Log(host.Line{Level: host.Warn, Text: "a request is refused, because its model has no price",
			Err: option.Invalid("model", name, "one with a price"), Dropped: dropped})
	}
}
