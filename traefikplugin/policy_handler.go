package traefikplugin

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// policyHandler is the middleware with a policy. It asks the policy first, and the hits of
// the policy go with those of the configuration through the queue.
type policyHandler struct {
	free     chan *pendingRequest
	queue    *batch.Queue
	hits     *hitTemplate
	upstream *upstream
	direct   *handler // responds to requests for which the queue has made no decision
	policy   *edge.Policy
	live     *policy.Policy // of policy
	template *policyTemplate
	timeout  time.Duration
	patience time.Duration // after an answer that took longer, the queue's timeout is too long
}

// verdict is what the policy says about a request.
type verdict uint8

const (
	isFree     verdict = iota // the request passes, and nothing is charged
	isCharged                 // the queue decides
	isLate                    // little time is left for the decision
	isAnswered                // the response is sent
)

func (h *policyHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p := <-h.free
	p.hits = h.hits
	p.w = w
	p.r = r
	if h.hits.recorder != nil {
		p.began = time.Now()
	}
	removeForwarded(r.Header)
	says := askPolicy(h, p)
	if says == isCharged {
		batch.Enter(h.queue, p.call)
		if !p.admitted && !respondToPolicy(h, p, w) {
			says = isAnswered
		}
	} else if says == isLate && !decideLate(h, p) {
		says = isAnswered
	}
	if says != isAnswered && h.template.forward {
		forward(r.Header, &p.outcome)
	}
	p.asked = false
	p.facts = policy.Facts{} // a part of a long request must not be kept
	p.outcome.User = ""
	p.outcome.Tier = ""
	for i := range p.outcome.Hits {
		p.outcome.Hits[i].Key = ""
	}
	if p.r != nil {
		forget(p)
	}
	h.free <- p
	if says != isAnswered {
		pass(h.upstream, w, r)
	}
}

// askPolicy asks the policy about a request. The frequent case is a known API key with limits
// that are all Simple.
func askPolicy(h *policyHandler, p *pendingRequest) (says verdict) {
	defer containVerdict(h, p, &says)
	p.asked = true
	key, user, ok := setFacts(h.template, &p.facts, p.r)
	if !ok {
		return refusePath(p)
	}
	if key == "" || !policy.Recall(h.live, key, &p.facts, &p.outcome) {
		return askFully(h, p, key, user)
	}
	if p.outcome.Simple {
		return isCharged
	}
	edge.ShadowsLast(&p.outcome)
	return verdictOn(h, p)
}

// askFully asks the policy about a request of which it may have to ask the database.
func askFully(h *policyHandler, p *pendingRequest, key, user string) verdict {
	p.began = time.Now()
	err := edge.Apply(background, h.policy, h.timeout, key, user, &p.facts, &p.outcome)
	if err != nil {
		err = askAgain(h, p, key, user, err)
	}
	if err != nil {
		return withoutPolicy(h, p, err)
	}
	says := verdictOn(h, p)
	if says == isCharged && time.Since(p.began) > h.patience {
		return isLate
	}
	return says
}

// verdictOn is the verdict that follows from the policy's outcome. A request that the policy
// refuses is answered.
func verdictOn(h *policyHandler, p *pendingRequest) verdict {
	if p.outcome.Reason != policy.NotRefused && !h.policy.Lift(&p.outcome) {
		return refuseByPolicy(h, p)
	}
	if len(h.hits.hits) == 0 && len(p.outcome.Hits) == 0 {
		recordByPolicy(p, edge.Outcome{})
		return isFree
	}
	return isCharged
}

// containVerdict must be deferred. It turns a panic into a verdict.
func containVerdict(h *policyHandler, p *pendingRequest, says *verdict) {
	if failure := recover(); failure != nil {
		admitted := false
		p.outcome.Reset() // it may be that of an earlier request
		panicked(h.direct, p.w, &admitted, failure)
		*says = isAnswered
		if admitted {
			*says = isFree
		}
	}
}

func refusePath(p *pendingRequest) verdict {
	p.outcome.Reset()
	recordByPolicy(p, edge.AmbiguousPath())
	respond(p.w, edge.AmbiguousPath())
	return isAnswered
}

func refuseByPolicy(h *policyHandler, p *pendingRequest) verdict {
	noteRefusal(h, p, nil)
	recordByPolicy(p, edge.RefusalOf(&p.outcome))
	respond(p.w, edge.RefusalOf(&p.outcome))
	return isAnswered
}

// withoutPolicy is what happens to a request that the policy could not decide as a whole. If it is
// not refused, the limits of the configuration apply, and those of the policy that are known to.
func withoutPolicy(h *policyHandler, p *pendingRequest, err error) verdict {
	outcome := edge.NoDecision(h.direct.decider.OnError, err)
	h.direct.pool.logger.failure(fmt.Errorf("middleware %s: %s: %w", h.direct.name, outcome.Consequence(), err))
	if outcome.Status != 0 {
		recordByPolicy(p, outcome)
		respond(p.w, outcome)
		return isAnswered
	}
	if len(h.hits.hits) == 0 && len(p.outcome.Hits) == 0 {
		recordByPolicy(p, outcome)
		return isFree
	}
	p.failure = err
	return isLate
}

// askAgain asks the policy that has replaced a closed one, because the request came long after
// a reload. Otherwise it returns err.
func askAgain(h *policyHandler, p *pendingRequest, key, user string, err error) error {
	if !errors.Is(err, ratelimit.ErrClosed) {
		return err
	}
	registry := h.direct.registry
	timeout := h.direct.decider.Timeout
	pool, failure := registry.acquire(h.direct.pool.settings, timeout)
	if failure != nil {
		return err
	}
	defer registry.release(pool)
	replaced, failure := registry.acquirePolicy(pool, h.template.settings)
	if failure != nil {
		return err
	}
	defer registry.releasePolicy(pool, h.template.settings)
	return edge.Apply(background, replaced, timeout, key, user, &p.facts, &p.outcome)
}

// decideLate decides a request in what is left of its timeout. It reports whether the
// request passes; otherwise it has sent the response.
func decideLate(h *policyHandler, p *pendingRequest) (passes bool) {
	defer contain(h.direct, p.w, &passes)
	d := *h.direct.decider
	d.Timeout -= time.Since(p.began)
	if d.Timeout < time.Millisecond {
		d.Timeout = time.Millisecond // refusals that are known need no more
	}
	outcome := askStore(p, &d)
	if outcome.Err != nil {
		outcome = noDecision(h.direct, p, outcome.Err)
	} else if outcome.Status != 0 {
		noteRefusal(h, p, p.call.Decisions)
	}
	failure := p.failure
	p.failure = nil
	recordAlone(p, outcome, failure)
	return respond(p.w, outcome)
}

// respondToPolicy is the rest of ServeHTTP for a request that the queue has not admitted.
func respondToPolicy(h *policyHandler, p *pendingRequest, w http.ResponseWriter) (passes bool) {
	body := p.body
	if body == "" {
		return respondWithoutDecision(h.direct, p, w)
	}
	noteRefusal(h, p, p.call.Decisions)
	status := p.status
	if status == 0 {
		status = http.StatusTooManyRequests
	}
	w.WriteHeader(status)
	_, _ = w.Write([]byte(body)) // an error means that the client has closed the connection
	return false
}

// noteRefusal notes a refused request for bans.
func noteRefusal(h *policyHandler, p *pendingRequest, decisions []ratelimit.Decision) {
	sender := &edge.Sender{KeyID: p.outcome.KeyID, User: p.outcome.User, Address: p.facts.Address}
	h.policy.NoteRefusals(sender, h.hits.bans, p.call.Hits, decisions, &p.outcome)
}

// deliverPolicy is deliver for a request that the policy was asked about. It reports whether
// nothing is left to do for it.
func deliverPolicy(p *pendingRequest, c *batch.Call) (done bool) {
	p.judged = edge.Judge(c.Decisions, &p.outcome)
	o := &p.judged
	if p.hits.recorder != nil {
		record(p, o, c.Hits, c.Decisions)
	}
	h := p.w.Header()
	for i := range c.Hits {
		c.Hits[i].Key = ""
	}
	if o.Overage > 0 {
		edge.SetOverage(h, o.Overage)
	}
	if o.Decision == nil {
		p.admitted = true
		return true
	}
	if o.Status == 0 || o.Status == http.StatusTooManyRequests && o.Message == "" && o.Wait == 0 {
		return false
	}
	edge.SetHeaders(h, o)
	p.body = o.Body()
	p.status = o.Status
	h["Content-Type"] = []string{"application/json"}
	h["Content-Length"] = []string{strconv.Itoa(len(p.body))}
	return true
}

// The request headers that tell the upstream what the policy knows.
const (
	userHeader = "X-Ratelimit-User"
	tierHeader = "X-Ratelimit-Tier"
	keyHeader  = "X-Ratelimit-Key-Id"
	ruleHeader = "X-Ratelimit-Rule"
)

// removeForwarded removes a client's own headers of the names that forward sets, also if they
// are written with underscores, which many upstreams take for the same.
func removeForwarded(h http.Header) {
	for name := range h {
		if n := len(name); n == len(userHeader) || n == len(keyHeader) {
			removeIfForwarded(h, name)
		}
	}
}

func removeIfForwarded(h http.Header, name string) {
	if isForwarded(name) {
		delete(h, name)
	}
}

func isForwarded(name string) bool {
	switch strings.ToLower(strings.Replace(name, "_", "-", -1)) {
	case "x-ratelimit-user", "x-ratelimit-tier", "x-ratelimit-rule", "x-ratelimit-key-id":
		return true
	}
	return false
}

// keepForwarded removes the names that forward sets from Connection: a proxy does not pass on
// the headers that Connection names, and a client could so hide them from the upstream.
func keepForwarded(h http.Header) {
	var kept []string
	for _, value := range h["Connection"] {
		for _, name := range strings.Split(value, ",") {
			if name = strings.TrimSpace(name); name != "" && !isForwarded(name) {
				kept = append(kept, name)
			}
		}
	}
	if kept == nil {
		delete(h, "Connection")
		return
	}
	h["Connection"] = []string{strings.Join(kept, ", ")}
}

// forward sets the headers that tell the upstream what the policy knows. What is unknown has
// no header.
func forward(h http.Header, o *policy.Outcome) {
	if h["Connection"] != nil {
		keepForwarded(h)
	}
	if o.User != "" {
		h[userHeader] = []string{headerText(o.User)}
	}
	if o.Tier != "" {
		h[tierHeader] = []string{headerText(o.Tier)}
	}
	if o.KeyID != 0 {
		h[keyHeader] = []string{strconv.FormatInt(o.KeyID, 10)}
	}
	if o.Rule != "" {
		h[ruleHeader] = []string{o.Rule}
	}
}

// headerText is text as the value of a header. What a header cannot have is percent-encoded:
// control characters, and spaces at the ends. So is a percent sign, so that no two texts have
// one value.
func headerText(text string) string {
	last := len(text) - 1
	for i := 0; i <= last; i++ {
		if text[i] < ' ' || text[i] == 0x7f || text[i] == '%' || text[i] == ' ' && (i == 0 || i == last) {
			return encodedText(text)
		}
	}
	return text
}

func encodedText(text string) string {
	encoded := ""
	last := len(text) - 1
	for i := 0; i <= last; i++ {
		c := text[i]
		if c < ' ' || c == 0x7f || c == '%' || c == ' ' && (i == 0 || i == last) {
			encoded += fmt.Sprintf("%%%02X", c)
		} else {
			encoded += text[i : i+1]
		}
	}
	return encoded
}
