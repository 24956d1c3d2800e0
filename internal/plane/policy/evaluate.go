package policy

import (
	"strings"
	"time"
)

// Evaluate overwrites o with the verdict on a request. id is nil for a request with neither an API key nor a
// user.
//
// Evaluate copies the verdict from the memo if the identity has no ban, overrides or billing period, and no
// ban or rule names a network of the client's address. Otherwise it calls evaluateInFull. The frequent case
// is in the body of this function because calls are slow in the interpreter: doc.go has the benchmark.
func Evaluate(s *Snapshot, f *Facts, id *Identity, now time.Time, o *Verdict) {
	if id == nil || s.set.memo == nil {
		evaluateInFull(s, f, id, now, o)
		return
	}
	sender, _ := id.state.Load().(*senderState)
	if sender == nil || sender.set != s.set || sender.bans != s.bans || now.UnixMicro() >= sender.plainUntil {
		evaluateInFull(s, f, id, now, o)
		return
	}
	all := s.set.memo
	all.mu.RLock()
	m := all.matches[combination{id.Tier, f.Method, f.Host, f.Path}]
	all.mu.RUnlock()
	if m == nil || m.verdict == nil || len(s.bans.byNetwork) > 0 && networkBan(s.bans, f) != nil ||
		len(s.set.index.byNetwork) > 0 && len(findByNetwork(s.set.index, f, id.Tier, nil)) > 0 {
		evaluateInFull(s, f, id, now, o)
		return
	}
	known := m.verdict
	clearVerdict(o)
	o.User = id.User
	o.Tier = id.Tier
	o.KeyID = id.KeyID
	o.Rule = known.Rule
	o.Endpoint = known.Endpoint
	o.Simple = known.Simple
	o.Marks = append(o.Marks, known.Marks...)
	o.Would = append(o.Would, known.Would...)
	o.Hits = append(o.Hits, known.Hits...)
	for _, i := range m.userHits {
		o.Hits[i].Key = sender.user
	}
}

// evaluateInFull evaluates any request without the verdicts of the memo. It returns the state of the sender,
// and why its API key is not valid, or NotRefused. A request with an invalid key counts as anonymous.
func evaluateInFull(s *Snapshot, f *Facts, id *Identity, now time.Time, o *Verdict) (*senderState, Reason) {
	at := now.UnixMicro()
	clearVerdict(o)
	o.Tier = f.Tier
	sender := anonymous
	var ban *Ban
	reason := NotRefused
	if id != nil {
		known := senderStateOf(s, id)
		ban = known.ban
		reason = keyProblem(id, known, at)
		if reason == NotRefused {
			sender = known
			o.User = id.User
			o.KeyID = id.KeyID
			if id.Tier != "" && at < sender.tierUntil {
				o.Tier = id.Tier
			}
		}
	}
	switch {
	case refuseBanned(networkBan(s.bans, f), ban, now, o):
	case reason != NotRefused && f.RejectUnknown:
		rejectKey(s, f, reason, at, o)
		if id.Known {
			o.Ended = id
		}
	default:
		decide(s.set, f, sender, at, o)
	}
	return sender, reason
}

// keyProblem returns why the API key of an identity is not valid, or NotRefused.
func keyProblem(id *Identity, sender *senderState, at int64) Reason {
	switch {
	case !sender.hasKey:
		return NotRefused
	case !id.Known:
		return UnknownKey
	case at >= sender.revokedAt:
		return KeyRevoked
	case at >= sender.expiresAt:
		return KeyExpired
	}
	return NotRefused
}

// decide writes to o the verdict of the rules, and refuses the request if the verdict depends on the
// parameters of the path. o.Tier must be set, and o must be empty otherwise.
func decide(set *ruleSet, f *Facts, sender *senderState, at int64, o *Verdict) {
	apply(match(set, f, o), f, sender, at, o)
	if strings.IndexByte(f.Path, ';') >= 0 && isAmbiguous(set, f, sender, at, o) {
		RefuseAmbiguous(o)
	}
}

// apply writes to o the verdict of the rules in found.
func apply(found []*rule, f *Facts, sender *senderState, at int64, o *Verdict) {
	if selectRules(found, f, sender, at, o) {
		charge(sender, at, o)
	}
}

// evaluateUnknown evaluates a request before its sender was looked up, by bans and by rules that do not need
// the sender. id has only the digest of the API key, or the user.
func evaluateUnknown(s *Snapshot, f *Facts, id *Identity, now time.Time, o *Verdict) {
	clearVerdict(o)
	o.Tier = f.Tier
	o.User = id.User
	if !refuseBanned(networkBan(s.bans, f), senderBan(s.bans, id), now, o) {
		o.senderUnknown = true
		decide(s.set, f, anonymous, now.UnixMicro(), o)
	}
}

// rejectKey refuses a request because of its API key. A rule that blocks the request with any key takes
// precedence, so that the answer does not depend on the cache.
func rejectKey(s *Snapshot, f *Facts, reason Reason, at int64, o *Verdict) {
	o.senderUnknown = true
	decide(s.set, f, anonymous, at, o)
	if o.Reason == Blocked {
		return
	}
	clearVerdict(o)
	o.Tier = f.Tier
	o.Reason = reason
	o.Status = 401
}
