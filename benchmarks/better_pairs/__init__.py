"""The search for better pairs: arms as data, each made, judged and measured by the stages' own commands."""
