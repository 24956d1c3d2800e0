package serve

import (
	"bytes"
	"runtime"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/usage"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

const (
	// shortBody is the longest body that is parsed at any time.
	shortBody = 64 << 10

	// fewCommas bounds the members and elements of a body that a batch waits for: an interpreter takes up to
	// 0.2 ms for each.
	fewCommas = 32
)

var comma = []byte(",")

// parsing bounds how many long bodies are parsed at once, because parsing takes several times their memory.
// More of them than processors would not be parsed faster.
var parsing = make(chan bool, runtime.GOMAXPROCS(0))

// unreadPrompts returns the requests with a body that was received but not read, and what each asks.
func unreadPrompts(all []*Request) ([]*Request, []*usage.Request) {
	var unread []*Request
	var asked []*usage.Request
	for _, q := range all {
		u := q.Upload
		if u == nil || u.length < 0 || u.promptRead {
			continue
		}
		a := &usage.Request{Path: q.HTTP.URL.Path, ContentTypes: q.HTTP.Header["Content-Type"]}
		if chunks := u.body.chunks; len(chunks) == 1 {
			a.Body = chunks[0]
		} else if len(chunks) > 1 {
			a.Body = bytes.Join(chunks, nil)
		}
		unread = append(unread, q)
		asked = append(asked, a)
	}
	return unread, asked
}

// readPrompts reads what requests ask for, unless it has done so, and refuses those that ask for what limits
// cannot count.
func readPrompts(all []*Request) {
	unread, asked := unreadPrompts(all)
	if unread == nil {
		return
	}
	usage.ReadPrompts(asked)
	var rules *policy.Policy // of prices
	var prices policy.Prices
	var known map[string]*Request // the first request for each model
	for i, q := range unread {
		u := q.Upload
		u.Prompt = asked[i].Prompt
		reason := policy.NoReason
		prompt := &u.Prompt
		switch {
		case asked[i].Err != nil:
			reason = policy.AmbiguousBody
		case prompt.Background:
			reason = policy.Background
		case prompt.Binary:
			reason = policy.BinaryStream
		case prompt.BatchAPI && !passesBatchAPI(q):
			reason = policy.BatchAPI
		}
		q.prompt = prompt.MediaTokens
		if n := u.length - prompt.MediaLength; n > 0 { // as option.InputOf does
			q.prompt += (n + 3) / 4
		}
		if q.HasVerdict && reason == policy.NoReason {
			if q.Site.Policy.Rules != rules {
				rules = q.Site.Policy.Rules
				prices = rules.Prices()
				known = make(map[string]*Request)
			}
			u.prices = prices
			first := known[prompt.Model]
			if first == nil {
				first = q
				known[prompt.Model] = q
				q.price = prices.Of(prompt.Model)
				prompt.Model = option.ModelName(prompt.Model)
			}
			prompt.Model = first.Upload.Prompt.Model
			q.price = first.price
			if q.price != nil {
				q.free = q.price.Free
				u.most = q.price.MaxOutput
				if n := prompt.Answers; n > 1 && u.most <= ratelimit.MaxEvents/n {
					u.most *= n
				}
			}
		} else {
			prompt.Model = option.ModelName(prompt.Model)
		}
		if reason == policy.NoReason && q.price == nil && u.money {
			reason = policy.NoPrice
		}
		u.promptRead = true
		if reason != policy.NoReason {
			refuseUpload(q, reason)
		}
	}
}
