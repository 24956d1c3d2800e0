package pg

import "testing"

// Each predicate is true for the wanted SQLSTATEs, and for no other of the list. ClassOf returns OtherClass
// for a code without a class of its own.
func TestPredicatesMatchOnlyTheirCodes(t *testing.T) {
	codes := []string{
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
		{name: "IsTransient", is: IsTransient, want: "40001 40P01 "},
		{name: "IsMissingTable", is: IsMissingTable, want: "42703 42P01 "},
		{name: "IsBadValue", is: IsBadValue, want: "22021 "},
		{name: "isLostStatement", is: isLostStatement, want: "26000 42P05 "},
		{name: "isStalePlan by routine",
			is: func(code string) bool {
				return isStalePlan(&ServerError{Code: code, Routine: "RevalidateCachedQuery"})
			},
			want: "0A000 "},
		{name: "isStalePlan by message",
			is: func(code string) bool {
				return isStalePlan(&ServerError{Code: code, Message: messageOfStalePlan})
			},
			want: "0A000 "},
		{name: "isStalePlan with another message",
			is: func(code string) bool {
				return isStalePlan(&ServerError{Code: code, Message: "COPY is not supported"})
			}},
		{name: "EndsSession", is: EndsSession, want: "57P01 57P02 57P03 57P04 57P05 "},
		{name: "ClosesConnection", is: ClosesConnection, want: "25006 57P01 57P02 57P03 57P04 57P05 "},
	} {
		got := ""
		for _, code := range codes {
			if c.is(code) {
				got += code + " "
			}
		}
		if got != c.want {
			t.Errorf("%s is true for %q, want %q", c.name, got, c.want)
		}
	}
	for code, want := range map[string]string{
		"40001": "40", "XX000": "XX", TimeoutClass: TimeoutClass, "": OtherClass, "2": OtherClass,
		"99999": OtherClass,
	} {
		if got := Classes[ClassOf(code)]; got != want {
			t.Errorf("Classes[ClassOf(%q)] = %q, want %q", code, got, want)
		}
	}
}
