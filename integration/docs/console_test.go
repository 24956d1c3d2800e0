package docs

import (
	_ "embed"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// commands has each line of a console block, without its comment, and below it its check: the folder and the
// name of the test that runs it, or one of commandChecks. Two other tests run the commands of recipes and of
// the policy.
//
//go:embed testdata/commands.txt
var commands string

var commandChecks = map[string]func(t *testing.T, command string){
	"a target of make": isMakeTarget, "it runs": runCommand, "flags of the benchmark": hasItsFlags,
}

// Each command of the documentation has a check, and each of these checks has a command.
func TestCommandsOfPagesAreTested(t *testing.T) {
	comment := regexp.MustCompile(`\s+# .*`)
	checks, used := map[string]string{}, map[string]bool{}
	for entry := range strings.SplitSeq(strings.TrimSpace(strings.ReplaceAll(commands, "\n\t", "\t")), "\n") {
		command, check, _ := strings.Cut(entry, "\t")
		checks[command] = check
	}
	for _, b := range blocksIn(t, "console", isOfGuide) {
		for line := range strings.Lines(b.text) {
			command, found := strings.CutPrefix(strings.TrimSpace(line), "$ ")
			if !found {
				t.Errorf("%s: the line is %q, want a command after $", b, line)
				continue
			}
			if isOfPolicy(command) {
				continue // see TestPolicyCommandsOfPagesSucceed
			}
			if strings.Contains(command, "/take?") {
				checkedByTest("deploy", "TestProgramsTakeUnitsOfTheirKey")(t, command)
				continue
			}
			command = comment.ReplaceAllString(command, "")
			check, found := checks[command]
			if !found {
				t.Errorf("%s: no test runs %q", b, command)
				continue
			}
			if !used[command] {
				used[command] = true
				t.Run(command, func(t *testing.T) {
					if folder, test, ok := strings.Cut(check, " Test"); ok {
						checkedByTest(folder, "Test"+test)(t, command)
					} else {
						commandChecks[check](t, command)
					}
				})
			}
		}
	}
	for command := range checks {
		if !used[command] {
			t.Errorf("no document has the command %q", command)
		}
	}
}

// checkedByTest returns a check for a command that another test runs. The check is that this test exists.
func checkedByTest(folder, test string) func(*testing.T, string) {
	return func(t *testing.T, command string) {
		if !hasTest(t, folder, test) {
			t.Errorf("%s has no test %s, want one that runs the command", folder, test)
		}
		if strings.HasPrefix(command, "make ") {
			isMakeTarget(t, command)
		}
	}
}

// runCommand runs the command.
func runCommand(t *testing.T, command string) {
	cmd := exec.Command("sh", "-c", command)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil || len(out) == 0 {
		t.Errorf("%s: error %v, want output without an error\n%s", command, err, out)
	}
}

// makeTargets returns the targets of the Makefile.
func makeTargets(t *testing.T) []string {
	t.Helper()
	makefile := readFile(t, root+"/Makefile")
	var targets []string
	for _, match := range regexp.MustCompile(`(?m)^([a-z.-]+):`).FindAllStringSubmatch(makefile, -1) {
		targets = append(targets, match[1])
	}
	return targets
}

func isMakeTarget(t *testing.T, command string) {
	if target := strings.Fields(command)[1]; !slices.Contains(makeTargets(t), target) {
		t.Errorf("the Makefile has no target %s", target)
	}
}

// Each `make` target that the documentation names is in the Makefile.
func TestNamedMakeTargetsExist(t *testing.T) {
	targets := makeTargets(t)
	inText := regexp.MustCompile("`(?:[A-Z_]+=\\S+ )?make ([a-z.-]*[a-z])")
	for _, d := range documents(t) {
		for _, match := range inText.FindAllStringSubmatch(d.text, -1) {
			if !slices.Contains(targets, match[1]) {
				t.Errorf("%s names make %s, which does not exist", d.path, match[1])
			}
		}
	}
}

// hasItsFlags checks that the benchmark has the flags of the command, and that
// the table of flags in bench/README.md is complete.
func hasItsFlags(t *testing.T, command string) {
	var flags []string
	for _, match := range regexp.MustCompile(`flag\.\w+\((?:&[\w.]+, )?"([a-z-]+)"`).FindAllStringSubmatch(
		readFile(t, root+"/bench/main.go"), -1) {
		flags = append(flags, "-"+match[1])
	}
	for _, match := range regexp.MustCompile(` (-[a-z-]+)`).FindAllStringSubmatch(command, -1) {
		if !slices.Contains(flags, match[1]) {
			t.Errorf("the benchmark has no flag %s, only %q", match[1], flags)
		}
	}
	sameNames(t, "bench/README.md, How to measure,", tableNames(t, "bench/README.md", "How to measure"),
		flags)
}
