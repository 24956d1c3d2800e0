package policy

import (
	"strings"
	"time"
)

// Evaluate writes to o what the policy does with a request of an identity at a time. It overwrites o. id is
// nil for a request with neither an API key nor a user.
//
// Evaluate itself answers from the memo of verdicts. That needs an identity without a ban, overrides or a
// billing period, and an address in no network that a ban or a rule names. All other requests take
// evaluateInFull. For the interpreter, the frequent case is in the body of this function: doc.go has the
// benchmark.
func Evaluate(s *Snapshot, f *Facts, id *Identity, now time.Time, o *Verdict) {
	if id == nil || s.set.memo == nil {
		evaluateInFull(s, f, id, now, o)
		return
	}
	sender, _ := id.amounts.Load().(*amounts)
	if sender == nil || sender.set != s.set || sender.bans != s.bans || now.UnixMicro() >= sender.plainUntil {
		evaluateInFull(s, f, id, now, o)
		return
	}
	all := s.set.memo
	all.mu.RLock()
	m := all.matches[combination{id.Tier, f.Method, f.Host, f.Path}]
	all.mu.RUnlock()
	if m == nil || m.verdict == nil || len(s.bans.byNetwork) > 0 && networkBan(s.bans, f) != nil ||
		len(s.set.index.byNetwork) > 0 && len(findNetworks(s.set.index, f, id.Tier, nil)) > 0 {
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
	for _, i := range m.byUser {
		o.Hits[i].Key = sender.user
	}
}

// evaluateInFull evaluates any request, without the memo of verdicts. It returns the amounts of the sender,
// and what is wrong with its API key, or NotRefused. The sender of such a key is nobody.
func evaluateInFull(s *Snapshot, f *Facts, id *Identity, now time.Time, o *Verdict) (*amounts, Reason) {
	at := now.UnixMicro()
	clearVerdict(o)
	o.Tier = f.Tier
	sender := nobody
	var ban *Ban
	reason := NotRefused
	if id != nil {
		known := amountsOf(s, id)
		ban = known.ban
		reason = invalid(id, known, at)
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
	case shutOut(networkBan(s.bans, f), ban, now, o):
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

// invalid returns what is wrong with the API key of an identity, or NotRefused.
func invalid(id *Identity, sender *amounts, at int64) Reason {
	switch {
	case !sender.byKey:
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

// decide writes to o the verdict of the rules, and refuses the request if that depends on the parameters of
// its path. o has the tier, and is empty otherwise.
func decide(set *ruleSet, f *Facts, sender *amounts, at int64, o *Verdict) {
	apply(match(set, f, o), f, sender, at, o)
	if strings.IndexByte(f.Path, ';') >= 0 && isAmbiguous(set, f, sender, at, o) {
		RefuseAmbiguous(o)
	}
}

// apply writes to o the verdict of the rules that match a request.
func apply(found []*rule, f *Facts, sender *amounts, at int64, o *Verdict) {
	if selectRules(found, f, sender, at, o) {
		charge(sender, at, o)
	}
}

// evaluateUnknown evaluates a request without an answer of the database about the sender: bans hold, and
// rules that are not personal. id has only the digest of the API key, or the user.
func evaluateUnknown(s *Snapshot, f *Facts, id *Identity, now time.Time, o *Verdict) {
	clearVerdict(o)
	o.Tier = f.Tier
	o.User = id.User
	if !shutOut(networkBan(s.bans, f), senderBan(s.bans, id), now, o) {
		o.impersonal = true
		decide(s.set, f, nobody, now.UnixMicro(), o)
	}
}

// rejectKey refuses a request because of its API key. If a rule blocks the request with
// any key, that is the answer: it must not depend on what is cached.
func rejectKey(s *Snapshot, f *Facts, reason Reason, at int64, o *Verdict) {
	o.impersonal = true
	decide(s.set, f, nobody, at, o)
	if o.Reason == Blocked {
		return
	}
	clearVerdict(o)
	o.Tier = f.Tier
	o.Reason = reason
	o.Status = 401
}
