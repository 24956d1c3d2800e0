package pg

import "testing"

func TestWhatEachCodeMeans(t *testing.T) {
	all := []string{
		ProtocolViolation, FeatureNotSupported, InvalidByteSequence, ReadOnlyTransaction,
		InvalidStatementName, InvalidAuthorization,
		SerializationFailure, DeadlockDetected, UndefinedColumn, UndefinedTable, DuplicateStatement,
		LockNotAvailable,
		AdminShutdown, CrashShutdown, CannotConnectNow, DatabaseDropped, IdleSessionTimeout, "", "2", "XX000",
	}
	for _, c := range []struct {
		name string
		is   func(code string) bool
		want string
	}{
		{"IsTransient", IsTransient, "40001 40P01 "},
		{"IsMissingTable", IsMissingTable, "42703 42P01 "},
		{"IsBadValue", IsBadValue, "22021 "},
		{"IsLostStatement", IsLostStatement, "26000 42P05 "},
		{"IsLostByPooler",
			func(code string) bool { return IsLostByPooler(code, "prepared statement did not exist") },
			"08P01 "},
		{"IsLostByPooler otherwise",
			func(code string) bool { return IsLostByPooler(code, "server conn crashed?") }, ""},
		{"IsStalePlan by routine",
			func(code string) bool {
				return IsStalePlan(code, "RevalidateCachedQuery", "in another language")
			},
			"0A000 "},
		{"IsStalePlan by message",
			func(code string) bool {
				return IsStalePlan(code, "", "cached plan must not change result type")
			},
			"0A000 "},
		{"IsStalePlan otherwise",
			func(code string) bool { return IsStalePlan(code, "", "COPY is not supported") }, ""},
		{"EndsSession", EndsSession, "57P01 57P02 57P03 57P04 57P05 "},
		{"ClosesConnection", ClosesConnection, "25006 57P01 57P02 57P03 57P04 57P05 "},
	} {
		got := ""
		for _, code := range all {
			if c.is(code) {
				got += code + " "
			}
		}
		if got != c.want {
			t.Errorf("%s: %s; want %s", c.name, got, c.want)
		}
	}
	for code, want := range map[string]string{
		"40001": "40", "XX000": "XX", TimeoutClass: TimeoutClass, "": OtherClass, "2": OtherClass,
		"99999": OtherClass,
	} {
		if got := Classes[ClassOf(code)]; got != want {
			t.Errorf("the class of %q is %q; want %q", code, got, want)
		}
	}
}
