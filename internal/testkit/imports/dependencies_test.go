package imports

import (
	"encoding/json"
	"os/exec"
	"testing"
)

// The file go.mod replaces no module, because a replacement has no effect for users of this module.
func TestNoModuleIsReplaced(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "go", "mod", "edit", "-json")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var mod struct {
		Replace []any
	}
	if err := json.Unmarshal(out, &mod); err != nil {
		t.Fatal(err)
	}
	if len(mod.Replace) > 0 {
		t.Errorf("go.mod replaces %v, want no replacements", mod.Replace)
	}
}
